"""The optimizer step: the same whatever the padding, packing, micro-batches and devices."""

import dataclasses
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer.steps import compiled, single

from ptapi.spec import Optimizer, Parallelism, Schedule
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.batching import lay_out, to_batch
from pttrainer.data.sft_examples import Example
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, preset
from pttrainer.models.config import Experts
from pttrainer.runtime.distributed import logical_axes, sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step import microbatch
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.step import train_step

MODEL = Model(preset("tiny"))
LENGTHS = (5, 9, 14, 3, 7, 11, 2, 12)


class Likelihood:
    """The smallest algorithm: negative log-likelihood, and one metric of each kind."""

    total_steps, temperature, entropy, level, by_token, needs_params = 10, 1.0, False, False, True, False

    def loss(self, stats: TokenStats, batch: Batch) -> Any:
        kinds = {"mean": loss_weights.Mean, "largest": loss_weights.Largest, "smallest": loss_weights.Smallest}
        return -stats.logps_BT, {name: kind(stats.logps_BT) for name, kind in kinds.items()}


def examples() -> list[Example]:
    """Ragged examples; the first third of each is prompt."""
    random = np.random.default_rng(0)
    made = []
    for n in LENGTHS:
        learned = np.arange(n + 1) > n // 3
        made.append(Example(random.integers(0, 256, n + 1).astype(np.int32), learned))
    return made


def batch_of(rows: list[list[Example]], width: int) -> Batch:
    laid = [lay_out(row, width) for row in rows]
    return to_batch({name: np.stack([row[name] for row in laid]) for name in laid[0]})


def one_per_row(width: int = 16) -> Batch:
    return batch_of([[example] for example in examples()], width)


# Adam divides a gradient by its size, which turns rounding of tiny gradients into large steps. With this eps a
# step is proportional to the gradient, so equal weights afterwards mean equal gradients.
PROPORTIONAL = Optimizer(eps=1.0)


@lru_cache
def trained(
    shape: tuple[int, int, int, int] = (1, 1, 1, 1), micro: int | None = None, spec: Optimizer = PROPORTIONAL
) -> Any:
    """A compiled step on a mesh, and a fresh state for it."""
    mesh = sharding.make_mesh(shape) if np.prod(shape) > 1 else single()
    rate = transformation.schedule(Schedule(), 1.0 if spec.eps == 1.0 else 1e-2, 10)
    updates = transformation.build(spec, rate)
    program = Program(MODEL, Likelihood(), updates, rate, micro)  # type: ignore[arg-type]
    return mesh, *compiled(program, mesh)


def after(batch: Batch, steps: int = 1, **layout: Any) -> tuple[list[dict[str, float]], Any]:
    """Metrics of some steps on the same batch, and the weights after them."""
    mesh, function, fresh = trained(**layout)
    with jax.set_mesh(mesh):
        state, logged = fresh(), []
        for _ in range(steps):
            state, metrics = function(state, put(mesh, batch))
            logged.append({name: float(value) for name, value in metrics.items()})
    return logged, jax.device_get(state.params)


def assert_same_step(one: Any, other: Any, atol: float = 2e-5) -> None:
    for got, wanted in zip(one[0], other[0], strict=True):
        for name in wanted:
            assert got[name] == pytest.approx(wanted[name], rel=2e-5, abs=1e-5), name
    jax.tree.map(partial(np.testing.assert_allclose, atol=atol), one[1], other[1])


def test_padding_does_not_change_a_step() -> None:
    padded = jax.tree.map(lambda x: np.pad(x, ((0, 0), (0, 8))), one_per_row())
    assert_same_step(after(padded), after(one_per_row()))


def test_packed_rows_are_the_same_step_as_one_example_per_row() -> None:
    e = examples()
    packed = [[e[2], e[6]], [e[7], e[3]], [e[5], e[0]], [e[1], e[4]]]
    assert_same_step(after(batch_of([*packed, [], [], [], []], 16)), after(one_per_row()))


def test_the_order_of_rows_does_not_change_a_step() -> None:
    turned = jax.tree.map(lambda x: x[::-1].copy(), one_per_row())
    assert_same_step(after(turned), after(one_per_row()))


@pytest.mark.parametrize("micro", [1, 4])
def test_micro_batches_add_up_to_the_whole_batch(micro: int) -> None:
    assert_same_step(after(one_per_row(), micro=micro), after(one_per_row()))


def test_the_loss_is_the_mean_over_tokens_that_count() -> None:
    (logged,), _ = after(one_per_row())
    assert logged["loss"] == pytest.approx(-logged["mean"], rel=1e-5)
    assert logged["smallest"] < logged["mean"] < logged["largest"]


def test_a_step_without_a_token_to_learn_changes_nothing() -> None:
    batch = one_per_row()
    empty = batch._replace(mask_BT=np.zeros_like(batch.mask_BT), weight_BT=np.zeros_like(batch.weight_BT))
    (logged,), params = after(empty)
    fresh = jax.device_get(trained()[2]().params)
    assert logged["loss"] == 0.0
    assert logged["grad_norm"] == 0.0
    jax.tree.map(np.testing.assert_array_equal, params, fresh)


def test_training_on_one_batch_learns_it() -> None:
    logged, _ = after(one_per_row(), 8, spec=Optimizer())
    assert logged[-1]["loss"] < 0.6 * logged[0]["loss"]


def test_every_weight_of_a_fresh_model_gets_a_gradient() -> None:
    """A peer's MLPs start at zero and stay there for ever."""
    mesh, _, fresh = trained()
    batch = put(mesh, one_per_row())

    @jax.jit
    @jax.grad
    def gradient_of(params: Any) -> Any:
        hidden = MODEL.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
        return (hidden @ MODEL.head(params).T).sum(where=batch.mask_BT[..., None] > 0, axis=(0, 1)).std()

    for path, g in jax.tree_util.tree_leaves_with_path(gradient_of(fresh().params)):
        assert float(np.abs(g).max()) > 0, jax.tree_util.keystr(path)


def test_experts_are_pushed_to_be_used_alike() -> None:
    """Weight 0 on every token leaves the balance loss as the only gradient: it moves routers, and lowers itself."""
    experts = Experts(count=4, per_token=2, d_ff=32, balance_coefficient=1.0)
    model = Model(dataclasses.replace(preset("tiny"), family="qwen3_moe", experts=experts))
    updates = transformation.build(Optimizer(), lambda step: 1e-2)
    program = Program(model, Likelihood(), updates, lambda step: 1e-2)  # type: ignore[arg-type]
    function = train_step(program, program.layout(single()))
    batch = one_per_row()
    empty = batch._replace(weight_BT=np.zeros_like(batch.weight_BT))
    params = jax.jit(model.init)(jax.random.key(0))
    params["embedding"] += 0.2  # tokens alike: all choose the same experts at first
    state = program.new_state(params)
    before = np.asarray(state.params["layers"]["mlp"]["router"])
    losses = []
    for _ in range(15):
        state, metrics = function(state, jax.tree.map(jnp.asarray, empty))
        losses.append(float(metrics[microbatch.BALANCE]))
    assert losses[0] > 2.3
    assert losses[-1] < 2.2
    assert np.abs(np.asarray(state.params["layers"]["mlp"]["router"]) - before).max() > 1e-3


def test_auto_parallelism_splits_weights_over_fsdp() -> None:
    shape = logical_axes.mesh_shape(Parallelism(), 8)
    mesh, _, fresh = trained(shape=shape)
    with jax.set_mesh(mesh):
        up = fresh().params["layers"]["mlp"]["up"]
    assert up.addressable_shards[0].data.shape == (2, 64 // 8, 128)
