"""Episodes of a Gymnasium environment, in the child process that holds them: text in, text out.

    model's text → action      Discrete: the last word of it that names one (`actions`), else the last whole number;
                               Text: all of it
    observation → text         what the environment renders as `ansi`, else the observation, arrays as JSON

A text without an action is answered with what is accepted, and costs a turn: that is the policy's mistake. An exception
is the environment's: its episode has no reward. All samples of a prompt begin in the same state: the seed is the row's
`seed`, else a checksum of the row.

Left out: other spaces of actions, images, vectorised environments.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pttrainer.environments.episodes.python_episodes import Episodes, seed_of, shown
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError, describe

_MARKS = ((re.compile(r"\x1b\[0?m"), "]"), (re.compile(r"\x1b\[[\d;]+m"), "["))
"""Colours of a terminal, which mark a place, as brackets."""


class World:
    """One episode at a time of an environment that `make` makes."""

    def __init__(self, make: Callable[[], Any], actions: Sequence[str]) -> None:
        self._env, self._actions = make(), actions

    def reset(self, row: Mapping[str, Any]) -> str:
        """Begin an episode; return what the model reads first."""
        observation, _ = self._env.reset(seed=seed_of(row))
        return self._shown(observation)

    def step(self, text: str) -> tuple[str, float, bool]:
        """Return observation, reward, and whether the episode is over."""
        action = action_of(text, self._env.action_space, self._actions)
        if action is None:
            return f"no action; accepted: {accepted(self._env.action_space, self._actions)}", 0.0, False
        observation, reward, is_terminated, is_truncated, _ = self._env.step(action)
        return self._shown(observation), float(reward), bool(is_terminated or is_truncated)

    def close(self) -> None:
        """End the environment."""
        self._env.close()

    def _shown(self, observation: Any) -> str:
        return plain(self._env.render()) if self._env.render_mode == "ansi" else shown(observation)


def handler(source: Source) -> Handler:
    """Return the sandbox's handler. Raises RewardCodeError if the environment cannot be made or has other actions."""
    make = _maker(source["id"], source["arguments"])
    space = _checked(make, source["id"], source["actions"])
    episodes = Episodes(lambda: World(make, source["actions"]))
    return Handler(episodes.answer, details={"role": "user", "schemas": [], "accepts": space})


def _maker(name: str, arguments: Mapping[str, Any]) -> Callable[[], Any]:
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise RewardCodeError(
            f"{name}: {error}; hint: name it in spec.environment.packages, such as gymnasium==1.4.0"
        ) from error
    return lambda: gymnasium.make(name, **arguments)


def _checked(make: Callable[[], Any], name: str, actions: Sequence[str]) -> str:
    """Return the accepted actions of the environment, which is made once to see them."""
    try:
        env = make()
    except Exception as error:  # of anybody's code
        raise RewardCodeError(f"{name}: cannot be made: {describe(error)}") from error
    space = env.action_space
    env.close()
    kind, count = type(space).__name__, getattr(space, "n", None)
    if kind not in ("Discrete", "Text"):
        raise RewardCodeError(f"{name}: its actions are {space}; accepted: Discrete, Text")
    if actions and (kind == "Text" or len(actions) != count):
        raise RewardCodeError(
            f"{name}: {len(actions)} names in actions, but its actions are {space}; accepted: one each"
        )
    return accepted(space, actions)


def accepted(space: Any, actions: Sequence[str]) -> str:
    """Return what the model may answer."""
    if type(space).__name__ == "Text":
        return f"text of {space.min_length} to {space.max_length} characters"
    return ", ".join(actions) if actions else f"a whole number from {space.start} to {space.start + space.n - 1}"


def action_of(text: str, space: Any, actions: Sequence[str]) -> Any:
    """Return the action that a text names last; None if there is none."""
    if type(space).__name__ == "Text":
        return text if space.min_length <= len(text) <= space.max_length else None
    if actions:
        named = re.findall("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in actions), text, re.IGNORECASE)
        places = {word.lower(): place for place, word in enumerate(actions)}
        return int(space.start) + places[named[-1].lower()] if named else None
    numbers = re.findall(r"(?<![\w.])-?\d{1,9}(?!\w|\.\d)", text)
    return int(numbers[-1]) if numbers and 0 <= int(numbers[-1]) - space.start < space.n else None


def plain(rendered: Any) -> str:
    """Return rendered text, with brackets around what a terminal would colour."""
    text = str(rendered)
    for pattern, bracket in _MARKS:
        text = pattern.sub(bracket, text)
    return text
