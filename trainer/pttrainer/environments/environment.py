"""The interface of an environment: reset, step -> observation, reward, done; many episodes at a time.

The rollout numbers the episodes. Any failure inside an environment is an `error` of that episode alone: it ends, and
has no reward.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Row = Mapping[str, Any]


class ResetResult(NamedTuple):
    """How an episode begins. text: shown to the model after the row's prompt; may be empty.

    is_lost: the error is that of a service that did not answer.
    """

    text: str = ""
    error: str = ""
    is_lost: bool = False


class AssistantTurn(NamedTuple):
    """The model's turn, its row, and the seconds that the episode has left for its environment."""

    text: str
    row: Row
    left_s: float


class StepResult(NamedTuple):
    """The environment's answer to a turn.

    messages: what the model reads next, in the form of chat templates; empty once the episode is done. calls:
    number of tool calls; failed: how many of them were answered with an error. is_lost: the episode's error is that of
    a service that did not answer.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    reward: float = 0.0
    done: bool = False
    error: str = ""
    seconds: float = 0.0
    calls: int = 0
    failed: int = 0
    is_lost: bool = False


class Environment(Protocol):
    """Answers many episodes at once."""

    schemas: Sequence[Mapping[str, Any]]
    """The tools that the model is told of, as JSON schemas; empty for none."""
    is_rewarding: bool
    """Whether rewards of its turns mean anything."""

    def reset(self, rows: Mapping[int, Row]) -> dict[int, ResetResult]:
        """Begin episodes; earlier ones are over."""
        ...

    def step(self, turns: Mapping[int, AssistantTurn]) -> dict[int, StepResult]:
        """Return an answer for each of these episodes."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...
