"""Every axis of the mesh, alone and mixed: the same curve as one device, and each splits what it says."""

import dataclasses
import re
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.peers.models import CASES
from tests.builders.trainer.steps import Likelihood, compiled

from ptapi.spec import Optimizer, Parallelism, Schedule
from pttrainer.batch import Batch
from pttrainer.data.batching import to_batch
from pttrainer.errors import ConfigError
from pttrainer.models import Model, from_hf
from pttrainer.runtime.distributed import logical_axes, sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program

STEPS = 10
TOLERANCE = 2e-6
"""Relative, of the loss of 10 steps in float32. Measured: 4e-7. Steps are proportional to gradients (`eps` = 1): Adam
divides small gradients by themselves, and what is then left of a mixture's rounding is 2e-4 after 10 steps."""
ROWS, TOKENS = 8, 32


@lru_cache
def model(family: str) -> Model:
    """Two layers of a family: 6 heads of which 2 are keys, 107 words, 53 in the middle; mixtures of 8 experts.

    With a number behind its name, as wide in the middle.
    """
    family, _, width = family.partition(" ")
    config = from_hf(CASES[family])
    config = dataclasses.replace(config, d_ff=int(width or config.d_ff))
    of_layers = {"local_layers": config.local_layers[:2], "dense_layers": config.dense_layers[-2:]}
    config = dataclasses.replace(config, layers=2, **of_layers)
    if config.experts is not None:
        experts = dataclasses.replace(config.experts, count=8, balance_coefficient=0.01)
        config = dataclasses.replace(config, experts=experts)
    return Model(config)


def batch(vocabulary: int) -> Batch:
    """Rows of two examples, which end at different places, and some padding."""
    tokens = np.random.default_rng(0).integers(0, vocabulary, (ROWS, TOKENS)).astype(np.int32)
    positions = np.tile(np.arange(TOKENS, dtype=np.int32), (ROWS, 1))
    segments = np.ones_like(positions)
    for row in range(ROWS):
        cut = 8 + 2 * row
        segments[row, cut:], positions[row, cut:] = 2, positions[row, cut:] - cut
        segments[row, 28 + row % 4 :] = 0
    mask = ((segments > 0) & (positions > 2)).astype(np.float32)
    targets = np.roll(tokens, -1, axis=1)
    return to_batch(
        {"tokens": tokens, "targets": targets, "positions": positions, "segment_ids": segments, "mask": mask}
    )


def mesh_of(shape: tuple[int, ...]) -> jax.sharding.Mesh:
    return sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])


@lru_cache
def trained(family: str, shape: tuple[int, ...]) -> tuple[np.ndarray, Any, Any]:
    """Losses of the steps, the state after them, and the compiled step."""
    mesh = mesh_of(shape)
    rate = transformation.schedule(Schedule(), 1.0, STEPS)
    updates = transformation.build(Optimizer(eps=1.0), rate)
    program = Program(model(family), Likelihood(), updates, rate)  # type: ignore[arg-type]
    function, fresh = compiled(program, mesh)
    with jax.set_mesh(mesh):
        state, placed = fresh(), put(mesh, batch(model(family).config.vocab_size))
        lowered = function.lower(state, placed, None)  # type: ignore[attr-defined]
        executable = lowered.compile()
        losses = []
        for _ in range(STEPS):
            state, metrics = executable(state, placed, None)
            losses.append(float(metrics["loss"]))
    return np.array(losses), state, executable


ONE = (1,)
LAYOUTS = [
    pytest.param("qwen-3", (8,), id="data"),
    pytest.param("qwen-3", (2, 4), id="two slices"),
    pytest.param("qwen-3", (1, 1, 4, 2), id="tensor x sequence"),
    pytest.param("qwen-3", (2, 2, 1, 2), id="data x fsdp x sequence"),
    pytest.param("gemma-2", (1, 4, 2), id="windows, fsdp x tensor"),
    pytest.param("gemma-2", (2, 1, 1, 4), id="windows, sequence"),
    pytest.param("qwen-3-moe", (1, 1, 1, 1, 8), id="expert"),
    pytest.param("qwen-3-moe", (1, 2, 1, 1, 4), id="expert x fsdp"),
    pytest.param("deepseek-v3", (1, 2, 2, 1, 2), id="latent attention, fsdp x tensor x expert"),
    pytest.param("gpt-oss", (1, 1, 2, 2, 2), id="biased experts, expert x tensor x sequence"),
    pytest.param("glm-4.5", (1, 2, 2, 1, 2), id="a shared expert, expert x tensor x fsdp"),
]


@pytest.mark.parametrize(("family", "shape"), LAYOUTS)
def test_a_mesh_gives_the_curve_of_one_device(family: str, shape: tuple[int, ...]) -> None:
    alone = trained(family, ONE)[0]
    assert alone[-1] < 0.9 * alone[0]
    np.testing.assert_allclose(trained(family, shape)[0], alone, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("family", "shape", "up"),
    [
        pytest.param("qwen-3", (2, 4), (2, 11, 53), id="the model's axis is split"),
        pytest.param("qwen-3 64", (2, 4), (2, 44, 16), id="the inner axis, whose parts fill rows of tiles"),
        pytest.param("glm-4.5", (1, 2, 1, 1, 4), (2, 1, 42, 19), id="whole experts, and a shared one"),
        pytest.param("qwen-3 64", (1, 2, 1, 4), (2, 44, 8), id="devices that share rows, and split weights"),
        pytest.param("qwen-3-moe", (1, 2, 1, 4), (2, 1, 42, 19), id="so, with whole experts"),
    ],
)
def test_so_do_collectives_that_are_written_out(
    family: str, shape: tuple[int, ...], up: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logical_axes, "GATHERING", ("cpu",))  # where TPUs alone take them
    losses, state, executable = trained.__wrapped__(family, shape)
    np.testing.assert_allclose(losses, trained(family, ONE)[0], rtol=TOLERANCE)
    assert "all-to-all" in executable.as_text()
    assert state.params["layers"]["mlp"]["up"].addressable_shards[0].data.shape == up


def bytes_on_a_device(tree: Any) -> int:
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("shape", "factor"), [((8,), 1.0), ((2, 4), 4.0), ((2, 2, 1, 2), 4.0)])
def test_fsdp_and_sequence_split_the_state_and_data_does_not(shape: tuple[int, ...], factor: float) -> None:
    whole = bytes_on_a_device(trained("qwen-3", ONE)[1])
    assert whole / bytes_on_a_device(trained("qwen-3", shape)[1]) == pytest.approx(factor, rel=0.02)


def test_experts_are_split_over_their_axis_and_never_gathered() -> None:
    _, state, compiled = trained("qwen-3-moe", (1, 1, 1, 1, 8))
    mlp = state.params["layers"]["mlp"]
    for name in ("gate", "up", "down"):
        assert mlp[name].addressable_shards[0].data.shape[:2] == (2, 1), name
    assert not [shape for shape in gathered(compiled) if 19 in shape]  # 19 is the width of an expert


def test_sequence_gathers_keys_and_values_and_no_other_activation() -> None:
    config = model("gemma-2").config
    keys = config.kv_heads * config.head_dim
    whole_rows = [shape for shape in gathered(trained("gemma-2", (2, 1, 1, 4))[2]) if TOKENS in shape]
    assert whole_rows
    for shape in whole_rows:
        rest = int(np.prod(shape)) // (ROWS // 2 * TOKENS)
        assert rest in (1, keys), shape  # segment ids and positions; keys or values of all tokens


def gathered(compiled: Any) -> list[tuple[int, ...]]:
    """Shapes of what the compiled step's all-gathers make."""
    shapes = re.findall(r"= \(?[a-z0-9]+\[([\d,]+)\][^=]*? all-gather(?:-start)?\(", compiled.as_text())
    return [tuple(map(int, shape.split(","))) for shape in shapes]


def test_an_expert_axis_needs_experts_that_it_divides() -> None:
    logical_axes.check_experts(1, None)
    logical_axes.check_experts(4, 8)
    with pytest.raises(ConfigError, match=r"expert: 4: the model has no experts; accepted: auto, 1"):
        logical_axes.check_experts(4, None)
    with pytest.raises(ConfigError, match=r"expert: 4: must divide the model's 6 experts; accepted: 1, 2, 3, 6"):
        logical_axes.check_experts(4, 6)


def test_two_slices_are_two_copies() -> None:
    assert logical_axes.mesh_shape(Parallelism(), 8, slices=2)[:2] == (2, 4)
