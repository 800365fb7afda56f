"""Tokens to the experts' order and back: gradients of two gathers, which are each other."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pttrainer.models.families.presets import preset
from pttrainer.models.layers.mixture import experts
from pttrainer.models.layers.mixture.dispatch import combine, dispatch
from pttrainer.models.layers.mixture.experts import ExpertMLP

M, k, D = 12, 3, 8


def _order(seed: int = 0) -> np.ndarray:
    """Rows by random experts, and those of an expert as they came."""
    return np.argsort(np.random.default_rng(seed).integers(0, 5, M * k), stable=True).astype(np.int32)


def _random(rows: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(rows, D)).astype(dtype)


def _plain_dispatch(x_MD: Any, order_R: Any, k: int) -> Any:
    return x_MD[order_R // k]


def _plain_combine(rows_RD: Any, order_R: Any, k: int) -> Any:
    return jnp.zeros((len(order_R) // k, D), rows_RD.dtype).at[order_R // k].add(rows_RD)


@pytest.mark.parametrize(
    ("ours", "plain", "rows"), [(dispatch, _plain_dispatch, M), (combine, _plain_combine, M * k)], ids=["there", "back"]
)
def test_values_and_gradients_are_those_of_gathers_and_scatters(ours: Any, plain: Any, rows: int) -> None:
    x, order = _random(rows), _order()

    def loss(x: Any, way: Any) -> Any:
        out = way(x, order, k)
        return jnp.sum(jnp.sin(out)), out

    gradients = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), gradients(x, ours), gradients(x, plain)
    )


@pytest.mark.parametrize("of", ["values", "gradients"])
def test_sums_of_16_bits_round_once(of: str) -> None:
    """Added up in bfloat16, 256 + 1 + 1 would stay 256; the rows of every token are these three."""
    order = _order()
    rows = jnp.array([256, 1, 1], jnp.bfloat16)[order % k][:, None] * jnp.ones(D, jnp.bfloat16)
    if of == "values":
        total = combine(rows, order, k)
    else:
        _, of_x = jax.vjp(lambda x: dispatch(x, order, k), jnp.zeros((M, D), jnp.bfloat16))
        [total] = of_x(rows)
    assert total.dtype == jnp.bfloat16
    assert np.all(np.asarray(total, np.float32) == 258)


def test_undefined_rows_of_other_devices_experts_reach_nothing() -> None:
    order, rows = _order(), _random(M * k)
    is_own = np.arange(M * k) < 20
    undefined = np.where(is_own[:, None], rows, np.nan)
    zeros = np.where(is_own[:, None], rows, 0)
    np.testing.assert_array_equal(combine(undefined, order, k, is_own), combine(zeros, order, k))
    _, of_x = jax.vjp(lambda x: dispatch(x, order, k, is_own), jnp.zeros((M, D)))
    np.testing.assert_array_equal(of_x(undefined)[0], combine(zeros, order, k))


def _undefined_behind(x_RX: Any, matrices: Any, sizes_E: Any, **_: Any) -> Any:
    """Products as a TPU's kernels may leave them: anything in the rows behind all groups, and in their gradients."""
    is_own = (jnp.arange(len(x_RX)) < jnp.sum(sizes_E))[:, None]

    @jax.custom_vjp
    def ends(x: Any) -> Any:
        return jnp.where(is_own, x, jnp.nan)

    ends.defvjp(lambda x: (ends(x), None), lambda _, out: (jnp.where(is_own, out, jnp.nan),))
    return tuple(ends(jax.lax.ragged_dot(jnp.where(is_own, ends(x_RX), 0), each, sizes_E)) for each in matrices)


@pytest.mark.parametrize("kind", ["plain", "biased", "weighs_inputs"])
def test_what_is_undefined_changes_no_gradient(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A device with half of the experts, of tokens that chose any."""
    config = preset("tiny-moe")
    of = replace(config.experts, biased=kind == "biased", weighs_inputs=kind == "weighs_inputs", clamp=7.0)
    graph, layers = nnx.split(ExpertMLP(replace(config, experts=of), nnx.Rngs(0)))
    layer = nnx.merge(graph, jax.tree.map(lambda weights: weights[0], layers))
    half = {name: getattr(layer, name)[...][: of.count // 2] + 0.1 for name in layer._matrices}
    numbers = np.random.default_rng(0)
    x, chosen = numbers.normal(size=(16, config.d_model)), numbers.integers(0, of.count, (16, of.per_token))
    inputs = jnp.array(x, jnp.float32), jnp.array(numbers.random((16, of.per_token)), jnp.float32), half

    def loss(x_MD: Any, weight_Mk: Any, matrices: Any) -> Any:
        return jnp.sum(jnp.sin(layer._mixture(x_MD, jnp.array(chosen.reshape(-1)), weight_Mk, matrices)))

    defined = jax.grad(loss, argnums=(0, 1, 2))(*inputs)
    monkeypatch.setattr(experts, "grouped_products", _undefined_behind)
    monkeypatch.setattr(experts, "grouped_product", lambda x, each, sizes, **_: _undefined_behind(x, (each,), sizes)[0])
    undefined = jax.grad(loss, argnums=(0, 1, 2))(*inputs)
    jax.tree.map(np.testing.assert_array_equal, undefined, defined)
    assert all(np.any(np.asarray(each) != 0) for each in jax.tree.leaves(defined))
