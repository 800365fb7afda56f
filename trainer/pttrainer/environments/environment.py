"""What a rollout asks of an environment: reset, step -> observation, reward, done; many episodes at a time.

An episode is a number that the rollout gives. Whatever goes wrong inside an environment is an `error` of that episode
and of no other: it ends, and has no reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Row = Mapping[str, Any]


class Opening(NamedTuple):
    """How an episode begins. text: said to the model after the row's prompt; empty for nothing."""

    text: str = ""
    error: str = ""


class Said(NamedTuple):
    """What the model said in a turn, its row, and the seconds that the episode still has for its environment."""

    text: str
    row: Row
    left_s: float


class Turn(NamedTuple):
    """The environment's answer. messages: what the model reads next, as chat templates want them; none where the
    episode is done. calls: of tools, how many; failed: how many of them got an error for an answer."""

    messages: Sequence[Mapping[str, Any]] = ()
    reward: float = 0.0
    done: bool = False
    error: str = ""
    seconds: float = 0.0
    calls: int = 0
    failed: int = 0


class Environment(Protocol):
    """Answers many episodes at once."""

    schemas: Sequence[Mapping[str, Any]]
    """The tools that the model is told of, as JSON schemas; empty for none."""
    is_rewarding: bool
    """Whether rewards of its turns mean anything."""

    def reset(self, rows: Mapping[int, Row]) -> dict[int, Opening]:
        """Begins episodes; those of before are over."""
        ...

    def step(self, said: Mapping[int, Said]) -> dict[int, Turn]:
        """An answer for each of these episodes."""
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...
