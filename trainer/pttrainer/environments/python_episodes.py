"""Episodes of a user's environment, in the child process that holds them: one object of the class for each.

class Environment:
        role = "user"                                            # of its observations; or "tool"
        tools = []                                               # JSON schemas for the chat template
        def reset(self, row) -> str | None: …                    # text after the row's prompt, if any
        def step(self, text) -> tuple[str, float, bool]: …       # observation, reward, done
"""

import inspect
from typing import Any

from pttrainer.sandbox import user_code
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError

ROLES = ("user", "tool")


class Episodes:
    """Answers ["reset", episode, row] and ["step", episode, text]. Raises RewardCodeError if the class is wrong."""

    def __init__(self, class_: Any) -> None:
        if not inspect.isclass(class_):
            raise RewardCodeError(f"{getattr(class_, '__name__', class_)}: is not a class")
        for method, arguments in (("reset", "row"), ("step", "text")):
            if not callable(getattr(class_, method, None)):
                raise RewardCodeError(f"class {class_.__name__}: no method {method}(self, {arguments})")
        role = getattr(class_, "role", ROLES[0])
        if role not in ROLES:
            raise RewardCodeError(f"class {class_.__name__}: role is {role!r}; accepted: {', '.join(ROLES)}")
        self._class: Any = class_
        self._episodes: dict[int, Any] = {}
        self.details = {"role": role, "schemas": list(getattr(class_, "tools", []))}

    def answer(self, request: list[Any]) -> Any:
        """Return text for ["reset", …], or [observation, reward, done] for ["step", …]."""
        verb, episode, value = request
        if verb == "forget":
            self._episodes.clear()
            return True
        if verb == "reset":
            world = self._episodes[episode] = self._class()
            text: Any = world.reset(value)
            if text is not None and not isinstance(text, str):
                raise RewardCodeError(f"reset returned a {type(text).__name__}; accepted: str or None")
            return text or ""
        if episode not in self._episodes:
            raise RewardCodeError("another episode ended the process that both shared")
        return _checked(self._episodes[episode].step(value))


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of a user's environment."""
    episodes = Episodes(user_code.load(source["path"], source["function"], what="class"))
    return Handler(episodes.answer, details=episodes.details)


def _checked(result: Any) -> list[Any]:
    if not isinstance(result, tuple) or len(result) != 3:
        raise RewardCodeError(f"step returned a {type(result).__name__}; accepted: (observation, reward, done)")
    observation, reward, done = result
    if not isinstance(observation, str) and observation is not None:
        raise RewardCodeError(f"step: observation is a {type(observation).__name__}; accepted: str")
    if not isinstance(done, bool):
        raise RewardCodeError(f"step: done is {done!r}; accepted: True or False")
    return [observation or "", user_code.number(reward), done]
