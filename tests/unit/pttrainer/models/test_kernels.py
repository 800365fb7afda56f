"""Fused attention: which kernel is chosen, and that splash (interpreted) equals the plain computation."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from pttrainer.models.attention import flash_kernels, rope, splash_blocks, splash_mask
from pttrainer.models.attention.dot_product import (
    Scoring,
    attend_packed,
    causal_parts,
    packed_mask,
    packed_window,
    query_block,
)
from pttrainer.models.attention.flash_kernels import Kernel, Problem
from pttrainer.models.config import Rope
from pttrainer.runtime.distributed import balanced_rows, logical_axes, sharding

TOLERANCE = 2e-5
"""Of values and gradients of about 1, float32: splash sums in another order."""

LLAMA = Problem("tpu", "TPU v5", "bfloat16", rows=8, length=1024, heads=32, kv_heads=8, head_dim=128)
HOPPER = replace(LLAMA, platform="gpu", device_kind="NVIDIA H100 80GB HBM3")
AMPERE = replace(HOPPER, device_kind="NVIDIA A100-SXM4-40GB")

LAPTOP = replace(LLAMA, platform="cpu", device_kind="cpu", dtype="float32", columns=32)


@pytest.mark.parametrize(
    ("problem", "kernel"),
    [
        (LLAMA, "splash"),
        (replace(LLAMA, dtype="float32", head_dim=80, length=1000), "splash"),
        (replace(LLAMA, softcap=True), "splash"),
        (replace(LLAMA, sinks=True, head_dim=64), "splash"),
        (replace(LLAMA, row_shards=8, head_shards=4), "splash"),
        (replace(LLAMA, head_shards=16), "splash"),  # each of the 8 key heads twice
        (replace(LLAMA, rows=6, row_shards=4), "plain"),
        (replace(LLAMA, heads=6, kv_heads=2, head_shards=4), "plain"),
        (replace(LLAMA, heads=12, kv_heads=6, head_shards=4), "splash"),
        (replace(LLAMA, heads=12, kv_heads=4, head_shards=6), "splash"),
        (replace(LLAMA, heads=12, kv_heads=12, head_shards=8), "plain"),
        (replace(LLAMA, token_shards=4), "splash"),
        (replace(LLAMA, token_shards=8), "plain"),  # 128 tokens are no two tiles
        (replace(LLAMA, platform="cpu", device_kind="cpu"), "plain"),
        (LAPTOP, "cpu"),
        (replace(LAPTOP, head_dim=64, length=7), "cpu"),
        (replace(LAPTOP, columns=None), "plain"),
        (replace(LAPTOP, head_dim=80), "plain"),
        (replace(LAPTOP, dtype="bfloat16"), "plain"),
        (replace(LAPTOP, softcap=True), "plain"),
        (replace(LAPTOP, sinks=True), "plain"),
        (HOPPER, "cudnn"),
        (replace(HOPPER, platform="cuda"), "cudnn"),
        (replace(HOPPER, head_dim=256), "cudnn"),
        (AMPERE, "cudnn"),
        (replace(AMPERE, head_dim=256), "plain"),
        (replace(HOPPER, head_dim=20), "plain"),
        (replace(HOPPER, dtype="float32"), "plain"),
        (replace(HOPPER, softcap=True), "plain"),
        (replace(HOPPER, sinks=True), "plain"),
        (replace(HOPPER, length=1023), "plain"),
        (replace(HOPPER, token_shards=2), "plain"),
        (replace(HOPPER, platform="rocm", device_kind="MI300X"), "plain"),
    ],
)
def test_a_problem_gets_the_fastest_kernel_that_computes_exactly_it(problem: Problem, kernel: Kernel) -> None:
    assert flash_kernels.choose_kernel(problem) == kernel


PACKED = [[1] * 50 + [2] * 70 + [3] * 29 + [0] * 1, [1] * 150]
LEFT_PADDED = [[0] * 60 + [1] * 90, [0] * 3 + [1] * 147]


@pytest.mark.parametrize(
    ("segments", "heads", "kv_heads", "head_dim", "window", "softcap", "sinks"),
    [
        (PACKED, 4, 2, 64, None, None, False),
        (PACKED, 4, 2, 64, 11, None, False),
        (PACKED, 3, 3, 10, None, 5.0, False),
        (PACKED, 6, 2, 24, 40, None, True),
        (LEFT_PADDED, 5, 1, 128, None, None, False),
        (LEFT_PADDED, 4, 4, 16, 33, 7.0, True),
    ],
)
def test_splash_equals_the_plain_computation(
    segments: list[list[int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
) -> None:
    inputs = _inputs(np.array(segments, np.int32), heads, kv_heads, head_dim, sinks)
    plain = _values_and_gradients(_plain, inputs, window, softcap)
    fused = _values_and_gradients(_splash, inputs, window, softcap)
    _assert_close(fused, plain)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "softcap", "sinks"),
    [(4, 2, 64, None, None, False), (4, 2, 16, 33, 7.0, True)],
)
def test_so_does_its_fused_backward_pass(
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two blocks a row, so that the kernel's partial gradients of queries are added up."""
    only = {(kernel, 128, 128): (1, 1) for kernel in ("forward", "fused")}
    monkeypatch.setitem(splash_blocks.GENERATIONS, "cpu", "this")
    monkeypatch.setitem(splash_blocks.CYCLES, ("this", 128), only)
    splash_blocks.tiles_for.cache_clear()
    inputs = _inputs(np.array(LEFT_PADDED, np.int32), heads, kv_heads, head_dim, sinks)
    fused = _values_and_gradients(_splash, inputs, window, softcap)
    assert splash_blocks.tiles_for("cpu", head_dim, 256, window) == ((128, 128), (128, 128), None)
    splash_blocks.tiles_for.cache_clear()
    plain = _values_and_gradients(_plain, inputs, window, softcap)
    _assert_close(fused, plain)


@pytest.mark.parametrize(("window", "softcap", "sinks"), [(None, None, False), (150, 7.0, True)])
def test_so_does_a_backward_pass_with_more_keys_than_queries_in_a_block(
    window: int | None, softcap: float | None, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight heads in two groups, each with a kernel of its own."""
    only = {("forward", 128, 128): (1, 1), ("fused", 256, 128): (1, 1)}
    monkeypatch.setitem(splash_blocks.GENERATIONS, "cpu", "this")
    monkeypatch.setitem(splash_blocks.CYCLES, ("this", 128), only)
    monkeypatch.setattr(splash_blocks, "MOST_QUERIES", 128)
    monkeypatch.setattr(splash_blocks, "LONG_ROW", 512)
    splash_blocks.tiles_for.cache_clear()
    inputs = _inputs(np.array([[1] * 200 + [2] * 311 + [0], [1] * 512], np.int32), 8, 2, 16, sinks)
    fused = _values_and_gradients(_splash, inputs, window, softcap)
    tiles = splash_blocks.tiles_for("cpu", 16, 512, window)
    assert (tiles.backward.queries, tiles.backward.tokens, tiles.backward_queries) == (128, 256, None)
    assert splash_blocks.head_groups(tiles, 8, 2) == 2
    splash_blocks.tiles_for.cache_clear()
    plain = _values_and_gradients(_plain, inputs, window, softcap)
    _assert_close(fused, plain)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "groups"),
    [(64, 8, 8), (32, 8, 8), (16, 8, 4), (32, 1, 1), (128, 128, 32), (2, 2, 1), (28, 4, 4)],
)
def test_long_rows_have_a_kernel_for_each_few_heads_where_it_leaves_partial_gradients(
    heads: int, kv_heads: int, groups: int
) -> None:
    long, short = (splash_blocks.tiles_for("TPU7x", 128, length) for length in (131_072, 8192))
    assert splash_blocks.head_groups(long, heads, kv_heads) == groups
    assert splash_blocks.head_groups(short, heads, kv_heads) == 1


@pytest.mark.parametrize(
    ("device", "head_dim", "length", "window", "tiles"),
    [
        ("TPU v6 lite", 128, 8192, None, ((1024, 512), (1024, 1024), (1024, 512))),
        ("TPU v6 lite", 128, 16_384, None, ((1024, 512), (1024, 1024), (1024, 512))),
        ("TPU v6 lite", 128, 32_768, None, ((1024, 512), (4096, 512), None)),  # few partial gradients to add up
        ("TPU7x", 128, 131_072, None, ((1024, 512), (4096, 512), None)),
        ("TPU v5", 128, 131_072, 4096, ((512, 512), (512, 512), (512, 512))),  # a window hides most of a wide block
        ("TPU v5", 128, 4096, None, ((512, 512), (512, 512), (512, 512))),
        ("TPU v5", 128, 1024, None, ((512, 512), (1024, 1024), None)),  # nothing to add up
        ("TPU v6 lite", 128, 8192, 512, ((512, 512), (512, 512), (512, 512))),  # a window makes small tiles cheaper
        ("TPU v5 lite", 64, 384, None, ((128, 128), (128, 128), (128, 128))),  # 128 alone divides the row
        ("TPU v6 lite", 64, 4096, None, ((512, 512), (1024, 1024), (512, 512))),  # added up as heads of 128
        ("TPU v6 lite", 256, 8192, None, ((1024, 512), (1024, 1024), (1024, 512))),
        ("TPU v5", 256, 8192, 1024, ((512, 512), (256, 256), (256, 256))),  # Gemma 3's window
        ("TPU v4", 128, 2048, None, ((512, 512), (512, 512), (512, 512))),  # not measured
        ("TPU v6 lite", 512, 8192, None, ((1024, 1024), (512, 512), (1024, 512))),
        ("TPU7x", 512, 8192, None, ((1024, 512), (1024, 512), (1024, 512))),  # Gemma 4's layers without a window
    ],
)
def test_splash_takes_the_cheapest_tiles_of_the_table(
    device: str, head_dim: int, length: int, window: int | None, tiles: splash_blocks.Tiles
) -> None:
    assert splash_blocks.tiles_for(device, head_dim, length, window) == tiles


@pytest.mark.parametrize(("shape", "kv_heads"), [((2, 2, 2, 1), 2), ((1, 2, 4, 1), 2), ((2, 1, 4, 1), 4)])
def test_splash_on_a_mesh_equals_the_plain_computation(shape: tuple[int, ...], kv_heads: int) -> None:
    segments = np.array([PACKED[0], PACKED[1], LEFT_PADDED[0], LEFT_PADDED[1]], np.int32)
    inputs = _inputs(segments, 8, kv_heads, 16, sinks=True)
    plain = _values_and_gradients(_plain, inputs, 20, None)
    axes = logical_axes.MESH_AXES
    sizes = (*shape, *(1 for _ in axes[len(shape) :]))
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(sizes)
    with jax.set_mesh(Mesh(devices, axes)):
        fused = _values_and_gradients(_splash, inputs, 20, None)
    _assert_close(fused, plain)


@pytest.mark.parametrize("is_balanced", [False, True])
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4), (2, 1, 2, 2)])
def test_so_does_splash_of_rows_that_devices_share(
    shape: tuple[int, ...], window: int | None, *, is_balanced: bool
) -> None:
    segments = np.array([[1] * 500 + [2] * 400 + [3] * 123 + [0], [1] * 1024], np.int32)
    inputs = _inputs(segments, 4, 2, 16, sinks=True)
    plain = _values_and_gradients(_plain, inputs, window, None)
    with jax.set_mesh(sharding.make_mesh(shape)):
        fused = _values_and_gradients(_in_balanced_order if is_balanced else _splash, inputs, window, None)
    _assert_close(fused, plain)


def _in_balanced_order(q: Any, k: Any, v: Any, segments: Any, window: int | None, scoring: Scoring) -> jax.Array:
    q, k, v, segments = (balanced_rows.balanced(x) for x in (q, k, v, segments))
    out = flash_kernels.attend("splash", q, k, v, segments, window, scoring, is_balanced=True, interpret=True)
    return balanced_rows.natural(out.reshape(*out.shape[:2], -1)).reshape(out.shape)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_in_balanced_order_each_device_has_as_many_pairs_of_blocks(devices: int) -> None:
    """Of a causal mask; in natural order the last device has nearly twice as many as on average."""
    tile = splash_blocks.Tile(128, 128)
    made = splash_mask.RowKernel(
        *(2, 512 * devices, None, splash_blocks.Tiles(tile, tile, tile), None, "kernel", devices), is_balanced=True
    )
    tables = splash_mask.kernel(made)
    pairs = [
        int(np.count_nonzero(part)) for part in np.split(np.asarray(tables.fwd_mask_info.block_mask), devices, axis=1)
    ]
    blocks = 4 * devices
    assert pairs == [blocks * (blocks + 1) // 2 // devices] * devices


@pytest.mark.parametrize("is_local", [True, False])
def test_a_flag_chooses_the_window(is_local: bool) -> None:
    inputs = _inputs(np.array(LEFT_PADDED, np.int32), 4, 2, 16, sinks=True)
    plain = _values_and_gradients(_plain, inputs, 20 if is_local else None, None)
    devices = np.array(jax.devices()[:2]).reshape(2, *(1 for _ in logical_axes.MESH_AXES[1:]))
    with jax.set_mesh(Mesh(devices, logical_axes.MESH_AXES)):
        fused = _values_and_gradients(partial(_splash, is_local=jnp.asarray(is_local)), inputs, 20, None)
    _assert_close(fused, plain)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rotating_by_a_product_gives_the_same_bits(dtype: str) -> None:
    x, pull = (jax.random.normal(jax.random.key(i), (2, 7, 3, 16)).astype(dtype) for i in (0, 1))
    cos, sin = rope.rotation(Rope(10_000.0), 16, jnp.arange(14).reshape(2, 7))
    np.testing.assert_array_equal(rope.rotate_by_product(x, cos, sin), rope.rotate(x, cos, sin))
    ours, halves = (
        jax.vjp(lambda x, rotate=rotate: rotate(x, cos, sin), x)[1](pull)[0]
        for rotate in (rope.rotate_by_product, rope.rotate)
    )
    np.testing.assert_array_equal(ours, halves)


def test_long_rows_in_blocks_of_queries_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(np.array(PACKED, np.int32)[:, :128], 4, 2, 16, sinks=True)
    whole = _values_and_gradients(_plain, inputs, 20, 5.0)
    monkeypatch.setattr("pttrainer.models.attention.dot_product.MAX_SCORES", 2 * 4 * 32 * 128)
    assert query_block(2, 128, 4) == 32
    blocks = _values_and_gradients(_plain, inputs, 20, 5.0)
    _assert_close(blocks, whole)


@pytest.mark.parametrize(("T", "parts"), [(512, 2), (768, 2), (1024, 4)])
def test_a_row_that_a_cpu_attends_part_by_part_equals_the_whole(T: int, parts: int) -> None:
    assert causal_parts(T) == parts
    segments = np.array([[1] * 130 + [2] * (T - 131) + [0], [1] * T], np.int32)
    inputs = _inputs(segments, 4, 2, 16, sinks=True)
    _assert_close(
        _values_and_gradients(partial(_plain, is_causal=True), inputs, 200, 5.0),
        _values_and_gradients(_plain, inputs, 200, 5.0),
    )


def test_rows_that_are_short_or_do_not_divide_are_attended_whole() -> None:
    assert [causal_parts(T) for T in (256, 511, 513, 514, 1026, 2048)] == [1, 1, 1, 2, 2, 4]


def test_blocks_of_queries_are_as_large_as_fit() -> None:
    assert query_block(8, 256, 6) == 256
    assert query_block(8, 4096, 14) == 128
    assert query_block(64, 999, 14) == 999  # odd rows stay whole


def _inputs(segments: np.ndarray, heads: int, kv_heads: int, head_dim: int, sinks: bool) -> dict[str, Any]:
    random, (B, T) = np.random.default_rng(0), segments.shape
    draw = lambda *shape: jnp.asarray(random.standard_normal(shape), jnp.float32)  # noqa: E731
    kv = draw(B, T, kv_heads, head_dim), draw(B, T, kv_heads, head_dim)
    return {
        "segments": jnp.asarray(segments),
        "float": (draw(B, T, heads, head_dim), *kv, draw(heads) if sinks else None),
        "slope": draw(B, T, heads, head_dim) * (segments > 0)[..., None, None],
    }


def _assert_close(ours: Any, reference: Any) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)


def _values_and_gradients(attend: Any, inputs: dict[str, Any], window: int | None, softcap: float | None) -> Any:
    def loss(arrays: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, sinks = arrays
        out = attend(q, k, v, inputs["segments"], window, Scoring(q.shape[-1] ** -0.5, softcap, sinks))
        real = jnp.where(inputs["slope"] != 0, out, 0.0)
        return jnp.sum(real * inputs["slope"]), real

    return jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(inputs["float"]))


def _plain(
    q: Any, k: Any, v: Any, segments: Any, window: int | None, scoring: Scoring, *, is_causal: bool = False
) -> jax.Array:
    mask = packed_mask(segments)
    if window is not None:
        positions = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
        mask = packed_window(mask, positions, window)
    return attend_packed(q, k, v, mask, scoring, is_causal=is_causal)


def _splash(
    q: Any, k: Any, v: Any, segments: Any, window: int | None, scoring: Scoring, is_local: jax.Array | None = None
) -> jax.Array:
    return flash_kernels.attend("splash", q, k, v, segments, window, scoring, is_local=is_local, interpret=True)
