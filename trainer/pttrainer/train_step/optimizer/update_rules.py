"""The update rules behind `training.optimizer.name`, from optax: one function each, and one table.

Weights of all layers are stacked, [L, in, out], and those of experts twice, [L, E, in, out]. AdamW and Lion work on
single numbers, so stacking does not matter to them. Adafactor and Muon work on matrices: a rule that took the stack for
one array would factor over layers, or share one update size among them. So each matrix is updated on its own here, as
in the papers.

What a job does not set comes from `DEFAULTS`, the papers' values except where a comment says otherwise.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from ptapi.defaults import ADAMW
from ptapi.spec import Optimizer
from pttrainer.models.weights.hf_names import Path
from pttrainer.train_step.optimizer.adam import scale_by_adam
from pttrainer.train_step.optimizer.state_shapes import is_hidden_matrix, matrix_kind, stacks

MUON_RMS = 0.2
"""Muon's updates are scaled to about this root mean square per element, AdamW's own (arXiv 2502.16982, equation 4):
one learning rate and weight decay then fit both."""


class Hyperparameters(NamedTuple):
    """beta1, beta2, eps of a rule; None if it has none. rate: its learning rate as a share of AdamW's."""

    beta1: float | None
    beta2: float | None
    eps: float | None
    rate: float


DEFAULTS: dict[str, Hyperparameters] = {
    "adamw": Hyperparameters(*ADAMW, rate=1.0),
    # Its second moment decays as 1 - step^-0.8 and needs no floor (arXiv 1804.04235). Updates are clipped to a root
    # mean square of 1 and not scaled by the weights' size, as Hugging Face's Trainer does: AdamW's rates fit.
    "adafactor": Hyperparameters(None, None, None, 1.0),
    # beta1 is the momentum of its matrices; the others are of the AdamW that trains the rest.
    "muon": Hyperparameters(0.95, 0.95, 1e-8, 1.0),
    # Every element moves by the whole rate, so the paper takes 3 to 10 times less (arXiv 2302.06675).
    "lion": Hyperparameters(0.9, 0.99, None, 0.1),
}


def build(spec: Optimizer, rate: optax.Schedule, decayed: Callable[[Any], Any], axes: Any) -> Any:
    """Build the rule that the spec names. decayed: which weights decay; axes: the weights' logical axes."""
    return RULES[spec.name](spec, _hyperparameters(spec), rate, decayed, axes)


def _adamw(spec: Optimizer, n: Hyperparameters, rate: optax.Schedule, decayed: Callable[[Any], Any], axes: Any) -> Any:
    """Build Adam with decoupled decay (arXiv 1711.05101)."""
    beta1, beta2, eps = (x for x in n[:3] if x is not None)
    return optax.chain(
        scale_by_adam(beta1, beta2, eps),
        optax.add_decayed_weights(spec.weight_decay, decayed),
        optax.scale_by_learning_rate(rate),
    )


def _lion(spec: Optimizer, n: Hyperparameters, rate: optax.Schedule, decayed: Callable[[Any], Any], axes: Any) -> Any:
    """Build the sign of an interpolated momentum (arXiv 2302.06675, algorithm 2): half of AdamW's state."""
    return optax.lion(rate, b1=n.beta1, b2=n.beta2, weight_decay=spec.weight_decay, mask=decayed)


def _adafactor(
    spec: Optimizer, n: Hyperparameters, rate: optax.Schedule, decayed: Callable[[Any], Any], axes: Any
) -> Any:
    """Keep a second moment as one row and one column per matrix (arXiv 1804.04235): next to no state.

    Matrices with a side below 128 are not factored, and neither are vectors. No first moment, no relative step.
    """
    one = optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))
    return optax.chain(
        _each_matrix(one, axes),
        optax.add_decayed_weights(spec.weight_decay, decayed),
        optax.scale_by_learning_rate(rate),
    )


def _muon(spec: Optimizer, n: Hyperparameters, rate: optax.Schedule, decayed: Callable[[Any], Any], axes: Any) -> Any:
    """Orthogonalise the momentum (kellerjordan.github.io/posts/muon) of the matrices inside the layers.

    As its authors advise, embedding, head, norms and biases train with AdamW; so do routers, which are as narrow as
    there are experts.
    """

    def last_two(updates: Any) -> Any:
        return jax.tree.map(lambda x: MuonDimensionNumbers((x.ndim - 2,), (x.ndim - 1,)), updates)

    matrices = optax.chain(
        scale_by_muon(beta=n.beta1, weight_dimension_numbers=last_two),
        optax.stateless_with_tree_map(lambda x, _: x * (MUON_RMS * max(x.shape[-2:]) ** 0.5)),
        optax.add_decayed_weights(spec.weight_decay, decayed),
        optax.scale_by_learning_rate(rate),
    )
    others = _adamw(spec, n._replace(beta1=0.9), rate, decayed, axes)
    label: Callable[[Any], str] = lambda of: "matrices" if is_hidden_matrix(of) else "others"  # noqa: E731
    return optax.partition({"matrices": matrices, "others": others}, jax.tree.map(label, axes, is_leaf=_is_axes))


RULES: dict[str, Callable[..., Any]] = {"adamw": _adamw, "adafactor": _adafactor, "muon": _muon, "lion": _lion}


def _hyperparameters(spec: Optimizer) -> Hyperparameters:
    """Return the rule's hyperparameters, overridden by the spec's."""
    named = {name: getattr(spec, name) for name in ("beta1", "beta2", "eps")}
    return DEFAULTS[spec.name]._replace(**{name: value for name, value in named.items() if value is not None})


def _each_matrix(rule: optax.GradientTransformation, axes: Any) -> optax.GradientTransformation:
    """Apply the rule to every matrix of a stack by itself."""
    numbers = {
        matrix_kind(_names(path), of): stacks(of)
        for path, of in jax.tree_util.tree_leaves_with_path(axes, is_leaf=_is_axes)
    }
    kinds = jax.tree_util.tree_map_with_path(lambda path, of: matrix_kind(_names(path), of), axes, is_leaf=_is_axes)
    return optax.partition({kind: _over(rule, n) for kind, n in numbers.items()}, kinds)


def _names(path: Any) -> Path:
    return tuple(part.key for part in path)


def _over(rule: optax.GradientTransformation, stacked: int) -> optax.GradientTransformation:
    init, update = rule.init, rule.update
    for _ in range(stacked):
        init, update = jax.vmap(init), jax.vmap(update)
    return optax.GradientTransformation(init, update)


def _is_axes(x: Any) -> bool:
    return isinstance(x, tuple)
