"""Rewards: one module each, with `reward(prompt, completion, row) -> float`, and the runner that calls them.

A reward is a pure function of the prompt's text, the completion's text and the data set's row. To add one: a module in
`builtin`, a line in a table of `factory`, a test. Nothing in this package imports jax: the runner's child processes
start in a tenth of a second.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pttrainer.runtime.reporting.step_faults import Kind

Row = Mapping[str, Any]
RewardFunction = Callable[[str, str, Row], float]

NEEDS_ANSWER = frozenset({"gsm8k", "choice", "exact", "math", "tool-use"})
"""Builtins that compare with the row's gold answer."""


class Sample(NamedTuple):
    """The input of a reward. tokens: length of the model's own output; messages, tools: the whole conversation."""

    prompt: str
    completion: str
    row: Row
    tokens: int = 0
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] | None = None


class Verdict(NamedTuple):
    """A reward, or why there is none.

    stopped: it timed out, its process died, or a budget is spent, so the reward itself is not at fault. kind: the
    cause, which decides how the run ends if many samples share it.
    """

    reward: float | None
    error: str = ""
    stopped: bool = False
    kind: Kind = Kind.REWARD
