"""The sharding of optimizer state: that of the weight it belongs to.

A leaf of the state belongs to the weight whose path its own path ends with. One of the weight's shape is sharded like
it; a row or column of Adafactor keeps the remaining axes of the weight; all else (counts, placeholders of one number)
is small and replicated.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import DictKey, GetAttrKey

_Path = tuple[Any, ...]


def shardings(state: Any, weights: Any, where: Any, whole: NamedSharding) -> Any:
    """Return the shardings of the state.

    state: shapes of the optimizer's state; weights, where: shapes and shardings of the weights.
    """
    shapes = dict(jax.tree_util.tree_leaves_with_path(weights))
    places = dict(jax.tree_util.tree_leaves_with_path(where))

    def one(path: _Path, leaf: Any) -> NamedSharding:
        of, kind = _split(path)
        if of not in shapes:
            return whole
        weight, place = shapes[of].shape, places[of]
        if leaf.shape == weight:
            return place  # type: ignore[no-any-return]
        return _without(place, _reduced(weight, kind), weight, leaf.shape) or whole

    return jax.tree_util.tree_map_with_path(one, state)


def _split(path: _Path) -> tuple[_Path, str]:
    """Return the part of a path that names a weight, and the field that holds it."""
    start = len(path)
    while start and isinstance(path[start - 1], DictKey):
        start -= 1
    field = path[start - 1] if start else None
    return path[start:], field.name if isinstance(field, GetAttrKey) else ""


def _reduced(shape: tuple[int, ...], kind: str) -> int | None:
    """Return the axis a row or column averages over: rows the larger of the last two, columns the smaller."""
    if len(shape) < 2 or kind not in ("v_row", "v_col"):
        return None
    smaller, larger = np.argsort(shape[-2:])
    return len(shape) - 2 + int(larger if kind == "v_row" else smaller)


def _without(place: Any, axis: int | None, shape: tuple[int, ...], left: tuple[int, ...]) -> NamedSharding | None:
    if axis is None or shape[:axis] + shape[axis + 1 :] != left:
        return None
    names = tuple(place.spec)
    return NamedSharding(place.mesh, PartitionSpec(*names[:axis], *names[axis + 1 :]))
