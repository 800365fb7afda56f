"""Rewards: one module each, with `reward(prompt, completion, row) -> float`, and the runner that calls them.

A reward is a pure function of the prompt's text, the completion's text and the data set's row. Adding one: a
module here, a line in the table, a test. Nothing in this package imports jax: the runner's child processes
start in a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]
RewardFunction = Callable[[str, str, Row], float]

MODULES: dict[str, str] = {
    "gsm8k": "pttrainer.rewards.gsm8k",
    "format": "pttrainer.rewards.format",
    "choice": "pttrainer.rewards.choice",
}
"""By the name in `spec.rewards[].builtin`."""

NEEDS_ANSWER = frozenset({"gsm8k", "choice"})
"""Builtins that compare with the row's gold answer."""
