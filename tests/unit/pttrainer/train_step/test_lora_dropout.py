"""Dropout on adapters: what they read, whom a mask belongs to, and that it is the same however a step is computed."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.builders.trainer import steps as build

from ptapi.spec import Optimizer
from pttrainer.models import Model, preset
from pttrainer.models.layers.linear import Drop, LowRank, project
from pttrainer.models.lora.adapters import Adapters
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step import lora_dropout, neftune
from pttrainer.train_step.lora_dropout import Dropout
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.step import train_step

B, T, X = 8, 16, 96
MODEL = Model(preset("tiny"), adapters=Adapters(4, 8.0, ("q", "down")))


def of_layer(rate: float = 0.25, seed: int = 0, at: int = 3, layer: int = 1, rows: slice = slice(None)) -> Drop:
    batch = neftune.numbered(build.batch())
    part = batch._replace(row_BT=batch.row_BT[rows])
    return lora_dropout.dropped(Dropout(rate, seed), jnp.int32(at), part)(jnp.int32(layer))


def mask(matrix: str = "q", rows: slice = slice(None), **of: Any) -> np.ndarray:
    ones = jnp.ones((B, T, X))[rows]
    return np.asarray(of_layer(rows=rows, **of)(matrix, ones))


def test_what_is_kept_is_scaled_so_that_the_mean_stays() -> None:
    factors = mask(rate=0.25)
    assert set(np.unique(factors)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert factors.mean() == pytest.approx(1.0, abs=0.02)
    assert factors.mean(axis=(1, 2)) == pytest.approx(1.0, abs=0.06)  # in every row


def test_a_row_has_the_same_mask_alone_as_among_others() -> None:
    np.testing.assert_array_equal(mask(rows=slice(5, 6))[0], mask()[5])


def test_steps_seeds_layers_matrices_and_rows_differ() -> None:
    first = mask()
    for other in (mask(at=4), mask(seed=1), mask(layer=0), mask("k"), first[::-1]):
        assert (first != other).mean() == pytest.approx(2 * 0.25 * 0.75, abs=0.02)  # of independent masks


def test_the_adapter_reads_what_the_mask_leaves_and_the_weights_read_all() -> None:
    random = np.random.default_rng(0)
    x, w, a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 5), (5, 4), (5, 2), (2, 4)))
    kept = np.array([[[1, 0, 1, 1, 0]] * 3, [[0, 1, 1, 0, 1]] * 3], np.float32)
    matrix = nnx.Param(jnp.asarray(w), axes=("embed", "heads"))
    adapter = LowRank("q", matrix, Adapters(2, 3.0, ("q",)))
    adapter.a[...], adapter.b[...] = jnp.asarray(a), jnp.asarray(b)

    def drop(name: str, x_BTX: jax.Array) -> jax.Array:
        return x_BTX * kept / (1 - 0.4) if name == "q" else jnp.zeros_like(x_BTX)

    with jax.default_matmul_precision("highest"):
        got = project(jnp.asarray(x), matrix, None, adapter, drop)
    np.testing.assert_allclose(got, x @ w + 1.5 * (x * kept / 0.6) @ a @ b, atol=1e-5)


def trained(rate: float | None, micro: int | None, shape: tuple[int, int, int, int]) -> Callable[[Any, int], Any]:
    """A function from a state (None: the first) and a number of steps to losses and the states after each."""
    mesh = sharding.make_mesh(shape) if np.prod(shape) > 1 else build.single()
    updates = transformation.build(Optimizer(eps=1.0), lambda _: 1.0)
    drops = None if rate is None else Dropout(rate, 0)
    program = Program(MODEL, build.Likelihood(), updates, lambda _: 1.0, micro, dropout=drops)
    layout = program.layout(mesh)
    function = train_step(program, layout)

    def run(before: Any, steps: int) -> Any:
        with jax.set_mesh(mesh):
            params = jax.device_put(adapted(), (layout.frozen, layout.state.params))
            state = program.new_state(params[1]) if before is None else before
            state, losses, states = jax.device_put(state, layout.state), [], []
            for _ in range(steps):
                state, metrics = function(state, put(mesh, build.batch()), params[0])
                losses.append(float(metrics["loss"]))
                states.append(jax.device_get(state))
        return losses, states

    return run


@lru_cache
def adapted() -> Any:
    """Weights, and adapters that are no longer fresh."""
    random = np.random.default_rng(1)
    weights = jax.device_get(jax.jit(MODEL.without_adapters.init)(jax.random.key(0)))
    of = MODEL.trained(MODEL.abstract())
    return weights, jax.tree.map(lambda x: (0.1 * random.standard_normal(x.shape)).astype(x.dtype), of)


def test_micro_batches_and_devices_drop_what_one_batch_drops_and_a_resumed_run_what_a_whole_one_does() -> None:
    run = trained(0.5, None, (1, 1, 1, 1))
    losses, states = run(None, 3)
    later, resumed = run(states[0], 2)
    assert later == losses[1:]
    jax.tree.map(np.testing.assert_array_equal, resumed[-1], states[-1])

    in_parts, parts = trained(0.5, 4, (2, 2, 1, 1))(None, 3)
    np.testing.assert_allclose(in_parts, losses, rtol=2e-5)
    jax.tree.map(lambda got, x: np.testing.assert_allclose(got, x, atol=1e-4), parts[-1].params, states[-1].params)

    without, _ = trained(None, None, (1, 1, 1, 1))(None, 1)
    assert abs(without[0] - losses[0]) > 1e-3
