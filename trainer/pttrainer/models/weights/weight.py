"""A weight of ours and where it is stored: which tensors of a checkpoint hold it, and how."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from pttrainer.models.config import ModelConfig
from pttrainer.models.weights.hf_names import Names, Stored, table


@dataclass(frozen=True)
class Weight:
    """A weight of ours: its path, where it is stored, its (stacked) shape and number format, its layout."""

    path: tuple[str, ...]
    stored: Stored
    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Any = None

    @property
    def places(self) -> list[tuple[int, ...]]:
        """Return one index into the stacked axes per tensor in the checkpoint."""
        return list(product(*(range(size) for size in self.shape[: self.stored.stacked])))

    def name(self, place: tuple[int, ...]) -> str:
        """Return the tensor's name in the checkpoint."""
        return self.stored.name_of(place)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return the shape of each tensor in the checkpoint."""
        if self.stored.part is not None:
            return self.stored.part.whole
        shape = self.shape[self.stored.stacked :]
        return self.stored.order(shape)

    def __str__(self) -> str:
        return ".".join(self.path)


Tensor = list[tuple[Weight, tuple[int, ...]]]
"""The weights that a tensor of a checkpoint holds: nearly always one."""


def weights_of(names: Names, tree: Any, shardings: Any = None) -> list[Weight]:
    """Return the weights of a tree, with their shardings if these are given."""
    weights = []
    for path, stored in names.items():
        leaf = at_path(tree, path)
        sharding = None if shardings is None else at_path(shardings, path)
        weights.append(Weight(path, stored, tuple(leaf.shape), np.dtype(leaf.dtype), sharding))
    return weights


def at_path(tree: Any, path: tuple[str, ...]) -> Any:
    """Return the leaf or subtree at a path."""
    for key in path:
        tree = tree[key]
    return tree


def stored_shapes(config: ModelConfig, tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the checkpoint of a model with weights shaped like `tree`."""
    return {
        weight.name(place): weight.stored_shape for weight in weights_of(table(config), tree) for place in weight.places
    }


def tensors_of(weights: list[Weight]) -> dict[str, Tensor]:
    """Return what each tensor of a checkpoint holds, by its name."""
    tensors: dict[str, Tensor] = {}
    for weight in weights:
        for place in weight.places:
            tensors.setdefault(weight.name(place), []).append((weight, place))
    return tensors
