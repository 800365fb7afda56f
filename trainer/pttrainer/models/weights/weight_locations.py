"""Where a weight of ours is in a checkpoint in Hugging Face's layout."""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Axis = TypeVar("Axis")
Path = tuple[str, ...]
"""Names on the way to a weight."""


class Part(NamedTuple):
    """A block of a tensor that holds several weights: its first row and column, and the tensor's shape.

    What no part holds is zero. step: 2 where the columns of two weights alternate.
    """

    first: tuple[int, ...]
    whole: tuple[int, ...]
    step: int = 1

    def where(self, bounds: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
        """Return where a block of the weight, by the bounds of its axes in the tensor's order, is in the tensor."""
        steps = (*[1] * (len(bounds) - 1), self.step)
        return tuple(
            slice(low * step + at, (high - 1) * step + at + 1, step)
            for (low, high), at, step in zip(bounds, self.first, steps, strict=True)
        )


@dataclass(frozen=True)
class Stored:
    """Where a weight is in a checkpoint.

    transposed: its last two axes stand the other way round. layers: the numbers of those that are stacked in it; part:
    of the tensor, in its order, if it is not all of it.
    """

    name: str
    transposed: bool = False
    layers: range = range(0)
    part: Part | None = None

    def order(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Return what stands for the axes of a tensor in the checkpoint's order, from ours: the same way back."""
        return (*axes[:-2], axes[-1], axes[-2]) if self.transposed else axes

    @property
    def stacked(self) -> int:
        """Return how many leading axes of ours are in the name there: layer, expert."""
        return ("{i}" in self.name) + ("{e}" in self.name)

    def name_of(self, place: tuple[int, ...]) -> str:
        """Return the name of the tensor at an index into the stacked axes."""
        numbers = (self.layers[place[0]], *place[1:]) if place else ()
        return self.name.format(**dict(zip("ie", numbers, strict=False)))
