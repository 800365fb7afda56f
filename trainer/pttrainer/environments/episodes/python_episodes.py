"""Episodes of a user's environment, in the child process that holds them: one object of the class for each.

class Environment:
        role = "user"                                            # of its observations; or "tool"
        tools = []                                               # JSON schemas for the chat template
        def reset(self, row) -> str | None: …                    # text after the row's prompt, if any
        def step(self, text) -> tuple[str, float, bool]: …       # observation, reward, done
        def close(self): …                                       # once the episode is over; may be missing
"""

import inspect
import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pttrainer.sandbox import user_code
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError

ROLES = ("user", "tool")
SEED = "seed"
"""The column of a row that begins its episodes."""


class Episodes:
    """Answers ["reset", episode, row] and ["step", episode, text]. make: makes the object of an episode."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._episodes: dict[int, Any] = {}

    def answer(self, request: list[Any]) -> Any:
        """Return text for ["reset", …], or [observation, reward, done] for ["step", …]."""
        verb, episode, value = request
        if verb == "forget":
            self._forget()
            return True
        if verb == "reset":
            world = self._episodes[episode] = self._make()
            text: Any = world.reset(value)
            if text is not None and not isinstance(text, str):
                raise RewardCodeError(f"reset returned a {type(text).__name__}; accepted: str or None")
            return text or ""
        if episode not in self._episodes:
            raise RewardCodeError("another episode ended the process that both shared")
        return _checked(self._episodes[episode].step(value))

    def _forget(self) -> None:
        """Drop the episodes, which are over; those that can be closed are."""
        while self._episodes:
            _, world = self._episodes.popitem()
            if callable(close := getattr(world, "close", None)):
                with suppress(Exception):  # a world that is thrown away may be broken
                    close()


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of a user's environment. Raises RewardCodeError if the class is wrong."""
    class_: Any = user_code.load(source["path"], source["function"], what="class")
    details = details_of(class_)
    return Handler(Episodes(class_).answer, details=details)


def details_of(class_: Any) -> dict[str, Any]:
    """Return who speaks in observations, and which tools there are; raise RewardCodeError if the class is wrong."""
    if not inspect.isclass(class_):
        raise RewardCodeError(f"{getattr(class_, '__name__', class_)}: is not a class")
    for method, arguments in (("reset", "row"), ("step", "text")):
        if not callable(getattr(class_, method, None)):
            raise RewardCodeError(f"class {class_.__name__}: no method {method}(self, {arguments})")
    role = getattr(class_, "role", ROLES[0])
    if role not in ROLES:
        raise RewardCodeError(f"class {class_.__name__}: role is {role!r}; accepted: {', '.join(ROLES)}")
    return {"role": role, "schemas": list(getattr(class_, "tools", []))}


def _checked(result: Any) -> list[Any]:
    if not isinstance(result, tuple) or len(result) != 3:
        raise RewardCodeError(f"step returned a {type(result).__name__}; accepted: (observation, reward, done)")
    observation, reward, done = result
    if not isinstance(observation, str) and observation is not None:
        raise RewardCodeError(f"step: observation is a {type(observation).__name__}; accepted: str")
    if not isinstance(done, bool):
        raise RewardCodeError(f"step: done is {done!r}; accepted: True or False")
    return [observation or "", user_code.number(reward), done]


def shown(observation: Any) -> str:
    """Return an observation as text."""
    return observation if isinstance(observation, str) else json.dumps(observation, default=_listed, ensure_ascii=False)


def seed_of(row: Mapping[str, Any]) -> int:
    """Return the seed of a row's episodes."""
    seed = row.get(SEED)
    if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
        return seed
    return zlib.crc32(json.dumps(row, sort_keys=True, default=str).encode())


def _listed(value: Any) -> Any:
    """Return a JSON value for an array, rounded to what a model can use."""
    if not hasattr(value, "tolist"):
        return str(value)
    return value.astype(float).round(4).tolist() if value.dtype.kind == "f" else value.tolist()
