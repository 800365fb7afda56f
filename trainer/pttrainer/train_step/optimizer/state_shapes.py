"""The state of an optimizer, as plain data: every array of `transformation.build`'s state, and its axes.

    adamw       two moments of each weight                lion        one
    adafactor   of each matrix a row and a column         muon        one of the layers' matrices, adamw's of the rest

with the average of the weights if one is kept, and without fully frozen weights. optax creates the arrays themselves
and `state_sharding` their shardings, both with jax: this gives the same shapes, and a test compares the two.
"""

from collections.abc import Iterator

from ptapi.spec import Optimizer
from pttrainer.models.shapes.parameters import Axes, ParamSpec, Weights
from pttrainer.models.weights.hf_names import Path, group_number

StateEntry = tuple[Path, ParamSpec]
"""An array of the state: its path (kind, then weight) and its shape."""
STACKED = ("layer", "expert")
"""Logical axes that count matrices."""
FACTORED_FROM = 128
"""Shorter sides are not factored."""
COEFFICIENTS = 3
"""Coefficients of muon's polynomial."""


def state(
    of: Optimizer, weights: Weights, frozen: frozenset[Path] | None = None, *, average: bool = False
) -> list[StateEntry]:
    """Return the state in optax's order.

    weights: those that are trained, in the order of their names; frozen: the fully frozen ones, if the job freezes any.
    """
    around: Path = () if frozen is None else ("inner_state",)
    rule = _rule(of, weights, frozen or frozenset())
    if not average:
        return list(_inside(around, rule))
    averaged = [(("ema", *path), one._replace(dtype="float32")) for path, one in weights.items()]
    return [*averaged, _count("count"), *_inside(("inner", *around), rule)]


def is_hidden_matrix(axes: Axes) -> bool:
    """Return True for two axes of its own within the layers; a router's second one has no name."""
    own = [axis for axis in axes if axis not in STACKED]
    return "layer" in axes and len(own) == 2 and None not in own


def stacks(axes: Axes) -> int:
    """Return how many axes of a weight count matrices."""
    return sum(axis in STACKED for axis in axes)


def matrix_kind(path: Path, axes: Axes) -> int:
    """Return a number that weights share whose matrices are counted by as many axes, in the same group of layers."""
    return stacks(axes) + (len(STACKED) + 1) * (group_number(path) if stacks(axes) else 0)


def _rule(of: Optimizer, weights: Weights, frozen: frozenset[Path]) -> Iterator[StateEntry]:
    trained = {path: one for path, one in weights.items() if path not in frozen}
    if of.name == "adafactor":
        yield from _adafactor(weights, trained)
    elif of.name == "muon":
        hidden = {path: one for path, one in trained.items() if is_hidden_matrix(one.axes)}
        others = {path: one for path, one in trained.items() if path not in hidden}
        yield from _inside(("inner_states", "matrices", "inner_state"), _moments(hidden, ("mu",), muon=True))
        yield from _inside(("inner_states", "others", "inner_state"), _moments(others, ("mu", "nu")))
    else:
        yield from _moments(trained, ("mu", "nu") if of.name == "adamw" else ("mu",))


def _moments(weights: Weights, names: tuple[str, ...], *, muon: bool = False) -> Iterator[StateEntry]:
    yield _count("count")
    yield from (((name, *path), one) for name in names for path, one in weights.items())
    if muon:
        yield ("ns_coeffs",), ParamSpec((COEFFICIENTS,), (None,), "float32")
    yield _count("count")


def _adafactor(weights: Weights, trained: Weights) -> Iterator[StateEntry]:
    """Yield the state of each matrix of a stack by itself, so counts are stacked, too."""
    kinds = {path: matrix_kind(path, one.axes) for path, one in weights.items()}
    for kind in sorted(set(kinds.values())):
        own = {path: one for path, one in trained.items() if kinds[path] == kind}
        any_one = next(one for path, one in weights.items() if kinds[path] == kind)
        stacked = stacks(any_one.axes)
        many = any_one.shape[:stacked]
        entries = [_whole(("count",), many, "int32")]
        for name in ("v_row", "v_col", "v"):
            entries += [((name, *path), _factor(name, one, stacked)) for path, one in own.items()]
        yield from _inside(("inner_states", "inner_state"), entries)
    yield _count("count")


def _factor(name: str, of: ParamSpec, stacked: int) -> ParamSpec:
    """Return the mean of squares over a matrix's longer side (`v_row`), its shorter one, or all of them (`v`)."""
    sides = sorted(range(stacked, len(of.shape)), key=lambda axis: of.shape[axis])
    is_factored = len(sides) >= 2 and of.shape[sides[-2]] >= FACTORED_FROM
    if is_factored == (name == "v"):  # a placeholder
        return ParamSpec((*of.shape[:stacked], 1), (None,) * (stacked + 1), of.dtype)
    if not is_factored:
        return of
    axis = sides[-1 if name == "v_row" else -2]
    shape, axes = of.shape[:axis] + of.shape[axis + 1 :], of.axes[:axis] + of.axes[axis + 1 :]
    return ParamSpec(shape, axes, of.dtype, (of, axis))


def _count(name: str) -> StateEntry:
    return _whole((name,), (), "int32")


def _whole(path: Path, shape: tuple[int, ...], dtype: str) -> StateEntry:
    return path, ParamSpec(shape, (None,) * len(shape), dtype)


def _inside(path: Path, entries: list[StateEntry] | Iterator[StateEntry]) -> Iterator[StateEntry]:
    yield from (((*path, *name), one) for name, one in entries)
