"""Products and gradients of experts' matrices by megablox' kernels (interpreted) are those of `jax.lax.ragged_dot`."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.presets import preset
from pttrainer.models.layers.mixture import grouped_product as module
from pttrainer.models.layers.mixture.experts import ExpertMLP
from pttrainer.models.layers.mixture.grouped_product import (
    grouped_product,
    grouped_products,
    matrices_gradient,
    tiles_for,
    turned_product,
)
from pttrainer.runtime import tpu_tiles
from pttrainer.runtime.distributed import logical_axes, sharding

TOLERANCE = 1e-5
"""Relative, float32: the kernel sums tile by tile."""
R, X, Y = 37, 24, 40
CONFIG = replace(preset("tiny-moe"), d_model=24)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels cut rows into three tiles, and Y into two, at shapes of milliseconds."""
    monkeypatch.setattr(module, "ROWS", 16)
    monkeypatch.setattr(module, "AXIS_BYTES", 4 * 32)
    monkeypatch.setattr(module, "LANES", 8)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose as on a TPU, and run the kernels as ordinary operations."""
    _choose_as_on_a_tpu(
        monkeypatch,
        lambda *inputs, interpret: matrices_gradient(*inputs, interpret=True),
        lambda *inputs, interpret: turned_product(*inputs, interpret=True),
    )


def _choose_as_on_a_tpu(monkeypatch: pytest.MonkeyPatch, gradient: Any, turned: Any) -> None:
    monkeypatch.setattr(module, "sharding", SimpleNamespace(chip=lambda: ("tpu", "TPU v6 lite")))
    monkeypatch.setattr(module, "matrices_gradient", gradient)
    monkeypatch.setattr(module, "turned_product", turned)


def _plain_turned(x_RX: Any, matrices_EYX: Any, sizes_E: Any, interpret: bool = False) -> Any:
    return jax.lax.ragged_dot(x_RX, matrices_EYX.swapaxes(1, 2), sizes_E)


def _plain_gradient(x_RX: Any, out_RY: Any, sizes_E: Any, interpret: bool = False) -> Any:
    """What `jax.lax.ragged_dot` computes as its gradient."""
    dimensions = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return jax.lax.ragged_dot_general(x_RX, out_RY, sizes_E, dimensions)


@pytest.fixture(scope="module")
def both() -> Any:
    """One program for all sizes of groups: by the kernel, and plain."""
    by_kernel, plain = jax.jit(partial(matrices_gradient, interpret=True)), jax.jit(_plain_gradient)
    return lambda x, out, sizes: (by_kernel(_behind(x, sizes, np.nan), _behind(out, sizes, np.nan), sizes),
                                  plain(_behind(x, sizes, 0), _behind(out, sizes, 0), sizes))  # fmt: skip


def _behind(x: np.ndarray, sizes: np.ndarray, value: float) -> np.ndarray:
    """Rows behind all groups are this, which is in no sum."""
    return np.where(np.arange(len(x))[:, None] < sizes.sum(), x, np.float32(value))


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "sizes",
    [
        (7, 9, 3, 12, 6), (16, 16, 1, 3, 1), (0, 0, 15, 11, 11), (5, 0, 0, 17, 15), (16, 0, 16, 0, 5),
        (20, 10, 7, 0, 0), (0, 0, 37, 0, 0), (37, 0, 0, 0, 0), (0, 0, 0, 0, 37), (3, 0, 5, 1, 2), (16, 0, 0, 0, 0),
        (1, 0, 0, 0, 16), (0, 0, 0, 0, 0), (9, 8, 0, 15, 0),
    ],
    ids=str,
)  # fmt: skip
def test_the_kernel_sums_each_groups_rows_alone(both: Any, sizes: tuple[int, ...]) -> None:
    """Groups of any size, empty ones at any place, and rows behind them all."""
    by_kernel, plain = both(_random(R, X), _random(R, Y, seed=1), np.array(sizes, np.int32))
    np.testing.assert_allclose(by_kernel, plain, rtol=TOLERANCE, atol=TOLERANCE)
    assert not np.any(by_kernel[np.array(sizes) == 0])


@pytest.mark.parametrize("sizes", [(7, 9, 3, 12, 6), (0, 0, 15, 11, 11), (16, 0, 16, 0, 5), (3, 0, 5, 1, 2)], ids=str)
def test_matrices_are_read_turned(sizes: tuple[int, ...]) -> None:
    """Of rows behind all groups nothing is said."""
    x, matrices, of = _random(R, X), _random(5, Y, X, seed=1), np.array(sizes, np.int32)
    turned = jax.jit(partial(turned_product, interpret=True))(_behind(x, of, np.nan), matrices, of)
    plain = _plain_turned(x, matrices, of)
    assert turned.shape == plain.shape
    np.testing.assert_allclose(turned[: of.sum()], plain[: of.sum()], rtol=TOLERANCE, atol=TOLERANCE)


def test_random_groups(both: Any) -> None:
    x, out = _random(R, X, seed=2), _random(R, Y, seed=3)
    for seed in range(8):
        of_row = np.random.default_rng(seed).integers(0, 6, R)  # a sixth of the rows behind all groups
        by_kernel, plain = both(x, out, np.bincount(of_row, minlength=6)[:5].astype(np.int32))
        np.testing.assert_allclose(by_kernel, plain, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_gradient_has_the_type_of_the_matrices() -> None:
    x, out, sizes = jnp.ones((16, 8), jnp.bfloat16), jnp.ones((16, 8), jnp.bfloat16), jnp.array([3, 13], jnp.int32)
    gradient = jax.jit(partial(matrices_gradient, interpret=True))(x, out, sizes)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradient[:, 0, 0], [3, 13])


def _loss(product: Any, x_RX: Any, matrices_LEXX: Any, sizes_E: Any) -> Any:
    layer = jax.checkpoint(lambda x, matrices: (jnp.tanh(product(x, matrices, sizes_E)), None))
    return jnp.sum(jax.lax.scan(layer, x_RX, matrices_LEXX)[0] ** 2)


@pytest.mark.parametrize("is_turned", [False, True])
def test_layers_in_a_loop_with_recomputation(interpreted: None, is_turned: bool) -> None:
    inputs = _random(R, X), _random(2, 5, X, X, seed=1), np.array([20, 0, 7, 10, 0], np.int32)
    ours, plain = (
        jax.jit(jax.grad(partial(_loss, product), argnums=(0, 1)))(*inputs)
        for product in (partial(grouped_product, is_turned=is_turned), jax.lax.ragged_dot)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=TOLERANCE), ours, plain)


def test_products_of_the_same_rows_add_up_their_gradients(interpreted: None) -> None:
    inputs = _random(R, X), _random(5, X, Y, seed=1), _random(5, X, Y, seed=2), np.array([20, 0, 7, 10, 0], np.int32)

    def of_both(x: Any, gate: Any, up: Any, sizes: Any) -> Any:
        return grouped_products(x, (gate, up), sizes)

    def of_each(x: Any, gate: Any, up: Any, sizes: Any) -> Any:
        return jax.lax.ragged_dot(x, gate, sizes), jax.lax.ragged_dot(x, up, sizes)

    def loss(products: Any, *inputs: Any) -> Any:
        gate, up = products(*inputs)
        return jnp.sum(jnp.tanh(gate) * up)

    ours, plain = (jax.jit(jax.grad(partial(loss, way), argnums=(0, 1, 2)))(*inputs) for way in (of_both, of_each))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=TOLERANCE), ours, plain)


@pytest.mark.parametrize(("of", "has_kernel"), [(0, False), (1, True)], ids=["frozen", "trained"])
def test_frozen_matrices_have_no_gradient(interpreted: None, of: int, has_kernel: bool) -> None:
    """As adapters train: only the rows' gradient is computed. Nor are they read turned: all would be copied."""
    inputs = _random(R, X), _random(2, 5, X, X), np.array([20, 0, 7, 10, 0], np.int32)
    program = str(jax.make_jaxpr(jax.grad(partial(_loss, grouped_product), argnums=of))(*inputs))
    assert ("name=tgmm" in program) == has_kernel
    assert ("name=gmm" in program) == has_kernel


@pytest.mark.parametrize(
    ("rows", "dtype", "has_kernel"),
    [(16 * 2048, "float32", True), (16 * 2049, "float32", False), (64, "bfloat16", True), (64, "float16", False)],
)
def test_what_the_kernel_cannot_is_left_to_the_plain_product(
    interpreted: None, rows: int, dtype: str, has_kernel: bool
) -> None:
    """Too many tiles of rows, of which it would count some twice, and types of numbers that it refuses."""
    inputs = jax.ShapeDtypeStruct((rows, X), dtype), jax.ShapeDtypeStruct((2, 5, X, X), dtype), np.zeros(5, np.int32)
    program = str(jax.make_jaxpr(jax.grad(partial(_loss, grouped_product), argnums=1))(*inputs))
    assert ("name=tgmm" in program) == has_kernel


def test_other_platforms_differentiate_the_plain_product() -> None:
    inputs = _random(R, X), _random(2, 5, X, X), np.array([20, 0, 7, 10, 0], np.int32)
    ours, plain = (
        str(jax.make_jaxpr(jax.grad(partial(_loss, product), argnums=(0, 1)))(*inputs))
        for product in (grouped_product, jax.lax.ragged_dot)
    )
    assert ours == plain


def _layer_gradients(x_BTD: Any, config: ModelConfig = CONFIG) -> Any:
    """The gradients of a layer's weights and input, as it is trained."""
    gradients, state = _layer_program(config)
    return jax.device_get(gradients(state, x_BTD))


def _layer_program(config: ModelConfig = CONFIG) -> Any:
    """The program of these gradients, and a layer's weights."""
    graph, layers = nnx.split(ExpertMLP(config, nnx.Rngs(0)))
    state = jax.tree.map(lambda weights: weights[0], layers)

    def loss(state: Any, x_BTD: Any) -> Any:
        layer = nnx.merge(graph, state)
        layer.is_split_as_trained = True
        return jnp.sum(layer(x_BTD, None, x_BTD)[0] ** 2)

    return jax.jit(jax.grad(loss, argnums=(0, 1))), state


def test_a_layer_of_experts(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _random(2, 9, CONFIG.d_model)
    ours = _layer_gradients(x)
    monkeypatch.undo()
    jax.tree.map(partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=TOLERANCE), ours, _layer_gradients(x))


@pytest.mark.parametrize(("lanes", "has_it_first"), [(128, True), (8, False)])
def test_a_layers_gradients_have_the_models_axis_first(
    monkeypatch: pytest.MonkeyPatch, lanes: int, has_it_first: bool
) -> None:
    """24 numbers of it fill no 128 lanes, so `down` has them elsewhere. Of 8 lanes they fill three times all."""
    axes = []

    def gradient(first_RX: Any, second_RY: Any, sizes_E: Any, interpret: bool) -> Any:
        axes.append((first_RX.shape[1], second_RY.shape[1]))
        return _plain_gradient(first_RX, second_RY, sizes_E)

    _choose_as_on_a_tpu(monkeypatch, gradient, _plain_turned)
    monkeypatch.setattr(tpu_tiles, "LANES", lanes)
    _layer_gradients(_random(2, 9, CONFIG.d_model))
    assert CONFIG.experts is not None
    first = CONFIG.d_model, CONFIG.experts.d_ff
    assert axes == [first if has_it_first else first[::-1], first, first]


def test_a_layer_over_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of matrices that several devices use, the gradient is the sum over them; experts stay with their device.

    The kernels' places are taken by plain products: interpreted, they do not run inside a `shard_map`.
    """
    x = _random(4, 6, CONFIG.d_model)
    with jax.set_mesh(sharding.make_mesh((1, 2, 2, 2, 1), jax.devices()[:8])):
        plain = _layer_gradients(x)
        _choose_as_on_a_tpu(monkeypatch, _plain_gradient, _plain_turned)
        ours = _layer_gradients(x)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=TOLERANCE), ours, plain)


@pytest.mark.parametrize("mesh", [(1, 8), (2, 4), (1, 4, 1, 1, 2)], ids=str)
def test_so_do_whole_experts_that_devices_gather(monkeypatch: pytest.MonkeyPatch, mesh: tuple[int, ...]) -> None:
    assert CONFIG.experts is not None
    config, x = replace(CONFIG, experts=replace(CONFIG.experts, count=8)), _random(8, 6, CONFIG.d_model)
    plain = _layer_gradients(x, config)
    monkeypatch.setattr(logical_axes, "GATHERING", ("cpu",))
    with jax.set_mesh(sharding.make_mesh(mesh, jax.devices()[:8])):
        split = sharding.weight_split(("expert", "expert_embed", "mlp"), (8, CONFIG.d_model, 64))
        ours = _layer_gradients(x, config)
    assert "fsdp" in split[0]  # 3 or 6 of 24 would fill no rows of tiles
    jax.tree.map(partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=TOLERANCE), ours, plain)


@pytest.mark.parametrize(
    ("mesh", "tokens"), [((1, 3), 0), ((1, 3, 1, 1, 2), 3), ((2, 1, 1, 3), 0)], ids=["fsdp", "expert", "sequence"]
)
def test_so_do_parts_of_experts_that_are_no_multiple_of_the_devices(
    monkeypatch: pytest.MonkeyPatch, mesh: tuple[int, ...], tokens: int
) -> None:
    """Each matrix's gradient is summed to the part of its device. The compiler would sum all of it on each.

    tokens: sums of tokens, of their weights and of results, over devices that hold other experts.
    """
    assert CONFIG.experts is not None
    assert CONFIG.experts.count % 3
    x = _random(6, 6, CONFIG.d_model)
    plain = _layer_gradients(x)
    monkeypatch.setattr(logical_axes, "GATHERING", ("cpu",))
    with jax.set_mesh(sharding.make_mesh(mesh, jax.devices()[: np.prod(mesh)])):
        gradients, state = _layer_program()
        program = gradients.lower(state, x).as_text()
        ours = jax.device_get(gradients(state, x))
    assert program.count("reduce_scatter") == 3 + tokens
    jax.tree.map(partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=TOLERANCE), ours, plain)


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        ((8192, 2048, 768, 2), (512, 1024, 768)),
        ((8192, 2048, 768, 4), (512, 512, 384)),
        ((8192 + 256, 2880, 5760, 2), (256, 1024, 1024)),
        ((1000, 1408, 16, 2), (512, 768, 16)),
        ((40, 2048, 64, 2), (48, 1024, 64)),
    ],
    ids=str,
)
def test_tiles(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int, int], tiles: tuple[int, int, int]) -> None:
    monkeypatch.undo()
    assert tiles_for(*shape) == tiles


@pytest.mark.parametrize(
    ("kind", "shape", "tiles"),
    [
        ("TPU v6 lite", (8192, 2048, 768, 2), (512, 1024, 768)),
        ("TPU v5", (8192, 2048, 768, 2), (512, 1024, 384)),
        ("TPU v5", (8192, 2048, 192, 2), (512, 1024, 128)),
        ("TPU v4", (8192, 2048, 128, 2), (512, 1024, 128)),
        ("TPU v4", (8192, 2048, 2048, 2), (512, 1024, 1024)),
    ],
    ids=str,
)
def test_two_cores_of_a_device_share_the_tiles_of_y(
    monkeypatch: pytest.MonkeyPatch, kind: str, shape: tuple[int, int, int, int], tiles: tuple[int, int, int]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(module, "sharding", SimpleNamespace(chip=lambda: ("tpu", kind)))
    assert tiles_for(*shape) == tiles
