"""How a completion is judged."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import DataUri, Name, SpecModel

BuiltinReward = Literal["gsm8k", "format", "math", "length", "code", "tool-use", "choice"]


class PythonReward(SpecModel):
    """A Python callable `reward(prompt, completion, row) -> float`."""

    uri: DataUri
    """The Python file."""
    function: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "reward"
    """The function in that file."""


class Reward(SpecModel):
    """One reward: exactly one of `builtin` and `python`."""

    name: Name | None = None
    """The name in metrics. Unset: the builtin's name, or the function's."""
    builtin: BuiltinReward | None = None
    """A reward that comes with posttrain."""
    python: PythonReward | None = None
    """A reward of your own."""
    weight: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """Factor in the sum of rewards."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 10.0
    """Wall-clock limit per completion; a reward that takes longer is no reward (the sample is left out)."""
    pattern: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """For `format`: the regular expression a completion must match. Unset: the reasoning and answer tags."""

    @property
    def label(self) -> str:
        """The name under which this reward is logged."""
        if self.name is not None:
            return self.name
        return self.builtin if self.builtin is not None else self.python.function if self.python else "reward"
