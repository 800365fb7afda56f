"""Episodes of a user's environment, in the child process that holds them: an object of the class for each.

class Environment:
    role = "user"                                            # of its observations; "tool" is the other
    tools = []                                               # JSON schemas for the chat template
    def reset(self, row) -> str | None: …                    # what is said after the row's prompt, if anything
    def step(self, text) -> tuple[str, float, bool]: …       # observation, reward, done
"""

from __future__ import annotations

import inspect
from typing import Any

from pttrainer.sandbox import user_code
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError

ROLES = ("user", "tool")


class Episodes:
    """Answers ["reset", episode, row] and ["step", episode, text]. Raises RewardCodeError where the class is wrong."""

    def __init__(self, made: Any) -> None:
        if not inspect.isclass(made):
            raise RewardCodeError(f"{getattr(made, '__name__', made)}: is not a class")
        for method, arguments in (("reset", "row"), ("step", "text")):
            if not callable(getattr(made, method, None)):
                raise RewardCodeError(f"class {made.__name__}: no method {method}(self, {arguments})")
        role = getattr(made, "role", ROLES[0])
        if role not in ROLES:
            raise RewardCodeError(f"class {made.__name__}: role is {role!r}; accepted: {', '.join(ROLES)}")
        self._class: Any = made
        self._episodes: dict[int, Any] = {}
        self.told = {"role": role, "schemas": list(getattr(made, "tools", []))}

    def answer(self, request: list[Any]) -> Any:
        """["reset", …] → text; ["step", …] → [observation, reward, done]."""
        verb, episode, value = request
        if verb == "forget":
            self._episodes.clear()
            return True
        if verb == "reset":
            world = self._episodes[episode] = self._class()
            said: Any = world.reset(value)
            if said is not None and not isinstance(said, str):
                raise RewardCodeError(f"reset returned a {type(said).__name__}; accepted: str or None")
            return said or ""
        if episode not in self._episodes:
            raise RewardCodeError("the process that held the episode was ended by another episode of it")
        return _checked(self._episodes[episode].step(value))


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of a user's environment."""
    episodes = Episodes(user_code.load(source["path"], source["function"], what="class"))
    return Handler(episodes.answer, told=episodes.told)


def _checked(found: Any) -> list[Any]:
    if not isinstance(found, tuple) or len(found) != 3:
        raise RewardCodeError(f"step returned a {type(found).__name__}; accepted: (observation, reward, done)")
    observation, reward, done = found
    if not isinstance(observation, str) and observation is not None:
        raise RewardCodeError(f"step: observation is a {type(observation).__name__}; accepted: str")
    if not isinstance(done, bool):
        raise RewardCodeError(f"step: done is {done!r}; accepted: True or False")
    return [observation or "", user_code.number(reward), done]
