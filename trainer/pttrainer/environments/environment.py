"""The interface of an environment: reset, step -> observation, reward, done; many episodes at a time.

The rollout numbers the episodes. Any failure inside an environment is an `error` of that episode alone: it ends, and
has no reward.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Row = Mapping[str, Any]


class ResetResult(NamedTuple):
    """How an episode begins. text: shown to the model after the row's prompt; may be empty.

    messages: the whole conversation so far, in place of the row's prompt; empty if the environment keeps that.
    is_lost: the error is that of a service that did not answer.
    """

    text: str = ""
    error: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    is_lost: bool = False


class RowPrompt(NamedTuple):
    """What the model reads of a row. group: the same number for all samples of a prompt."""

    messages: Sequence[Mapping[str, Any]] = ()
    group: int = 0


NO_PROMPTS: Mapping[int, RowPrompt] = {}


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

    def reset(self, rows: Mapping[int, Row], prompts: Mapping[int, RowPrompt]) -> dict[int, ResetResult]:
        """Begin episodes; earlier ones are over."""
        ...

    def step(self, turns: Mapping[int, AssistantTurn]) -> dict[int, StepResult]:
        """Return an answer for each of these episodes."""
        ...

    def finish(self, last_turns: Mapping[int, str | None]) -> dict[int, StepResult]:
        """Return what episodes earn once they are over, if they do: the reward or the error of each.

        last_turns: of each episode that has not failed, the turn that was cut and that the environment has not read;
        None if there is none.
        """
        ...

    def close(self) -> None:
        """End what it started."""
        ...
