"""The paged cache: when it is chosen, that the kernel (interpreted) equals the plain computation over it, and that a
rollout in pages says what one in the dense cache says."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as ragged

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, preset
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention import paged_kernel, paged_kv_cache
from pttrainer.models.attention.dot_product import Scoring, attend_cached, attend_shared, cached_mask
from pttrainer.models.attention.flash_kernels import Problem
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native import buckets, native_engine
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.native.sizes import max_rows
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put

LLAMA = Problem("tpu", "TPU v6 lite", "bfloat16", rows=256, heads=32, kv_heads=8, head_dim=128)


@pytest.mark.parametrize(
    ("problem", "is_chosen"),
    [
        (LLAMA, True),
        (replace(LLAMA, device_kind="TPU v5 lite"), True),
        (replace(LLAMA, device_kind="TPU v3"), False),
        (replace(LLAMA, platform="cpu", device_kind="cpu"), False),
        (replace(LLAMA, platform="gpu", device_kind="NVIDIA H100 80GB HBM3"), False),
        (replace(LLAMA, dtype="float32", head_dim=64), True),
        (replace(LLAMA, dtype="float16"), False),
        (replace(LLAMA, sinks=True), False),
        (replace(LLAMA, row_shards=8, head_shards=4), True),
        (replace(LLAMA, row_shards=3), False),
        (replace(LLAMA, head_shards=16), False),  # more than key heads
        (replace(LLAMA, kv_heads=1), True),
        (replace(LLAMA, kv_heads=2), True),
        (replace(LLAMA, kv_heads=16), True),
        (replace(LLAMA, heads=24, kv_heads=6), False),  # tiles of 6 registers there are none
        (replace(LLAMA, heads=24, kv_heads=6, head_shards=3), True),
        (replace(LLAMA, heads=48, kv_heads=12, dtype="float32"), True),
        (replace(LLAMA, heads=16, kv_heads=16), True),
        (replace(LLAMA, heads=16, kv_heads=16, dtype="float32"), False),  # 4 queries at once are half a tile
        (replace(LLAMA, heads=4, kv_heads=4, dtype="float32"), True),
        (replace(LLAMA, head_dim=256), False),
    ],
)
def test_the_kernel_is_chosen_where_it_computes_exactly_this(problem: Problem, is_chosen: bool) -> None:
    assert paged_kernel.is_supported(problem) == is_chosen


def test_a_call_brings_no_longer_table_than_the_scalar_memory_holds() -> None:
    assert paged_kernel.rows_of_a_call(6) == 512  # a line of it takes 128 entries at least
    assert paged_kernel.rows_of_a_call(129) == 256
    assert paged_kernel.rows_of_a_call(10**6) == 1


def test_a_token_takes_whole_lanes_of_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(preset("tiny"), "bfloat16")
    assert max_rows.token_bytes(model) == 2 * 2 * 2 * 16 * 2  # keys and values, layers, key heads, head size, bytes
    monkeypatch.setattr(sharding, "chip", lambda: ("tpu", "TPU v5 lite"))
    assert max_rows.token_bytes(model) == 2 * 2 * 2 * 128 * 2


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are full after a few tokens."""
    monkeypatch.setattr(paged_kv_cache, "PAGE", 8)
    monkeypatch.setattr(paged_kernel, "BLOCK_TOKENS", 16)


LENGTHS = [17, 8, 3]
"""Of prompts: two full pages and the begin of one, one full page and nothing, no full page."""


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "softcap"),
    [(4, 2, 128, None, None), (4, 1, 64, 9, None), (2, 2, 16, None, 5.0)],
)
def test_the_kernel_equals_the_plain_computation(
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    softcap: float | None,
    small_pages: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token of each of two samples that share a prompt; before it, the rows have said 0, 5, 9 … tokens."""
    _interpretable(monkeypatch, heads // kv_heads)
    written_B = np.array([0, 5, 9, 7, 15, 1])
    inputs = _inputs(heads, kv_heads, head_dim, written_B)
    scoring = Scoring(head_dim**-0.5, softcap)
    with pltpu.force_tpu_interpret_mode():
        paged = jax.jit(partial(_paged, written_B, window, scoring))(*inputs)
    np.testing.assert_allclose(paged, jax.jit(partial(_plain, written_B, window, scoring))(*inputs), atol=2e-6)


def _paged(written_B: Any, window: int | None, scoring: Scoring, prompts: Any, q: Any, own: Any, now_B1: Any) -> Any:
    """The rows' tokens are written to pages before the new one, which `attend` writes itself."""
    cached = paged_kv_cache.share(prompts, 2, 16)
    table_BJ = paged_kv_cache.table(cached)
    k_BTKH, v_BTKH = own.k_BKHS.transpose(0, 3, 1, 2), own.v_BKSH.transpose(0, 2, 1, 3)
    written = paged_kv_cache.write(cached.layers[0][0], k_BTKH, v_BTKH, table_BJ, _positions(written_B))
    new = (jnp.take_along_axis(x, written_B[:, None, None, None], axis=1) for x in (k_BTKH, v_BTKH))
    return paged_kernel.attend((q, *new), written[None], table_BJ, now_B1, window, scoring)[0]


def _plain(written_B: Any, window: int | None, scoring: Scoring, prompts: Any, q: Any, own: Any, now_B1: Any) -> Any:
    own_mask = cached_mask(now_B1, _positions(written_B + 1), window)
    prompt_mask = cached_mask(now_B1, jnp.repeat(prompts.positions_BS, 2, axis=0), window)
    return attend_shared(q, own, own_mask, prompts.layers[0], prompt_mask, scoring)


def _positions(count_B: np.ndarray) -> jax.Array:
    """Positions of so many tokens of each row, in 16 slots."""
    slots_BS = np.repeat(LENGTHS, 2)[:, None] + np.arange(16)
    return jnp.asarray(np.where(np.arange(16) < count_B[:, None], slots_BS, kv.EMPTY))


def _inputs(
    heads: int, kv_heads: int, head_dim: int, written_B: np.ndarray
) -> tuple[kv.KVCache, jax.Array, kv.LayerKV, jax.Array]:
    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.standard_normal(shape), jnp.float32)  # noqa: E731
    prompt_slots = np.arange(20)
    positions_PS = jnp.asarray(np.where(prompt_slots < np.array(LENGTHS)[:, None], prompt_slots, kv.EMPTY))
    layer = kv.to_slots(*(draw(3, 20, kv_heads, head_dim) for _ in range(2)))
    prompts = kv.KVCache((layer,), positions_PS, jnp.int32(20))
    own = kv.to_slots(*(draw(6, 16, kv_heads, head_dim) for _ in range(2)))
    return prompts, draw(6, 1, heads, head_dim), own, jnp.asarray(np.repeat(LENGTHS, 2) + written_B)[:, None]


def _interpretable(monkeypatch: pytest.MonkeyPatch, queries: int) -> None:
    """JAX 0.10.2 cannot interpret the reshape of a reference to what was copied; that of its numbers it can. And it
    takes a masked store for one out of bounds where a block has more rows than a key head has queries."""

    def wait(self: Any) -> Any:
        for copy in self._async_copies:
            copy.wait()
        return self._vmem_buf[...]

    monkeypatch.setattr(ragged.MultiPageAsyncCopyDescriptor, "wait", wait)
    monkeypatch.setattr(paged_kernel, "BLOCK_QUERIES", queries)


def test_rows_that_share_a_prompt_point_at_one_copy_of_its_full_pages(small_pages: None) -> None:
    prompts, *_ = _inputs(2, 2, 16, np.zeros(6, np.int64))
    table_BJ = np.asarray(jax.jit(lambda: paged_kv_cache.table(paged_kv_cache.share(prompts, 2, 16)))())
    assert (table_BJ[0, :2] == table_BJ[1, :2]).all()
    assert table_BJ[2, 0] == table_BJ[3, 0]
    own = [set(row[full:].tolist()) for row, full in zip(table_BJ, [2, 2, 1, 1, 0, 0], strict=True)]
    assert len(set.union(*own)) == sum(map(len, own))
    assert not set.union(*own) & {*table_BJ[0, :2].tolist(), *table_BJ[2, :1].tolist()}


def test_a_row_that_takes_over_a_prompt_reads_it_in_pages_of_its_own(small_pages: None) -> None:
    prompts, *_ = _inputs(2, 2, 16, np.zeros(6, np.int64))

    @jax.jit
    def taken_over() -> Any:
        rows = paged_kv_cache.grow(paged_kv_cache.share(kv.empty(_model().config, 3, 20, "float32"), 1, 8), 16)
        for row, which in ((2, 0), (0, 1)):
            rows = paged_kv_cache.replace_row(rows, jnp.int32(row), prompts, jnp.int32(which))
        return rows.layers[0][0], paged_kv_cache.table(rows)

    @jax.jit
    def shared() -> Any:
        rows = paged_kv_cache.share(prompts, 2, 16)
        return rows.layers[0][0], paged_kv_cache.table(rows)

    (ours, our_table_BJ), (theirs, their_table_BJ) = jax.device_get((taken_over(), shared()))
    for row, reader, length in ((2, 0, 17), (0, 2, 8)):
        of_row, of_reader = (
            x.reshape(-1, 4, 128)[:length] for x in (ours[our_table_BJ[row]], theirs[their_table_BJ[reader]])
        )
        assert np.abs(of_reader).sum() > 0
        np.testing.assert_array_equal(of_row, of_reader)
    read = [set(pages_J.tolist()) for pages_J in our_table_BJ]
    assert len(set.union(*read)) == sum(map(len, read))


@pytest.mark.parametrize("devices", [2, 3])
def test_pages_of_several_devices_grow_and_become_fewer_and_hold_what_they_held(
    devices: int, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two samples of a prompt stand on one of three devices and share its pages, or on either of two."""
    monkeypatch.setattr(paged_kernel, "_kernel", _gathered)
    written_B, kept_B = np.array([0, 5, 9, 7, 15, 1]), np.array([5, 0, 3, 2, 4, 1])[: 2 * devices]
    scoring = Scoring(0.25)
    prompts, q, own, now_B1 = _inputs(4, 2, 16, written_B)
    k_BTKH, v_BTKH = own.k_BKHS.transpose(0, 3, 1, 2), own.v_BKSH.transpose(0, 2, 1, 3)

    def attend(cached: paged_kv_cache.PagedCache, *inputs: Any) -> tuple[Any, paged_kv_cache.PagedCache]:
        q, k, v, positions_BT = inputs
        out, layer = paged_kernel.attend(
            (q, k, v), cached.layers[0], paged_kv_cache.table(cached), positions_BT, None, scoring
        )
        return out, cached._replace(layers=(layer,))

    @jax.jit
    def all_and_some() -> tuple[Any, Any]:
        _, cached = attend(
            paged_kv_cache.share(prompts, 2, 16), jnp.repeat(q, 16, axis=1), k_BTKH, v_BTKH, _positions(written_B)
        )
        new = (q, *(jnp.take_along_axis(x, written_B[:, None, None, None], axis=1) for x in (k_BTKH, v_BTKH)), now_B1)
        cached = paged_kv_cache.grow(cached, 32)
        fewer = paged_kv_cache.select_rows(cached, jnp.asarray(kept_B))
        assert paged_kv_cache.capacity(cached) == paged_kv_cache.capacity(fewer) == 32
        return attend(cached, *new)[0], attend(fewer, *(x[kept_B] for x in new))[0]

    with jax.set_mesh(sharding.make_mesh((devices,), jax.devices()[:devices])):
        every, some = all_and_some()
    plain = np.asarray(jax.jit(partial(_plain, written_B, None, scoring))(prompts, q, own, now_B1))
    np.testing.assert_allclose(every, plain, atol=2e-6)
    np.testing.assert_allclose(some, plain[kept_B], atol=2e-6)


def test_a_token_without_a_position_is_not_kept(small_pages: None) -> None:
    before, new = np.zeros((4, 8, 2, 128), np.float32), np.ones((2, 1, 1, 16), np.float32)
    after = np.asarray(
        jax.jit(paged_kv_cache.write)(before, new, 2 * new, np.array([[1, 0], [2, 3]]), np.array([[9], [-1]]))
    )
    assert np.argwhere(after[..., 0]).tolist() == [[0, 1, 0], [0, 1, 1]]
    assert after[0, 1, :, 0].tolist() == [1.0, 2.0]
    assert after[0, 1, :, 16:].sum() == 0


PROMPTS = [
    Prompt([5, 9, 17, 3, 40, 41, 42, 43, 44, 7], 0), Prompt([77, 2], 1), Prompt([40, 41, 42, 43, 44], 2), Prompt([1], 3)
]  # fmt: skip


@pytest.fixture
def in_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rollouts keep pages of 4 tokens, and gather them instead of calling the kernel."""
    monkeypatch.setattr(paged_kv_cache, "PAGE", 4)
    monkeypatch.setattr(paged_kernel, "is_supported", lambda problem: problem.rows % problem.row_shards == 0)
    monkeypatch.setattr(paged_kernel, "_kernel", _gathered)
    native_engine._compiled.cache_clear()
    GATHERED.clear()
    yield
    native_engine._compiled.cache_clear()


GATHERED: list[int] = []
"""Tokens of a row at most, of each program in pages."""


def _gathered(q: Any, pages_XZCH: Any, table_BJ: Any, positions_BT: Any, window: int | None, scoring: Scoring) -> Any:
    B, H = q.shape[0], q.shape[3]
    rows_BSCH = pages_XZCH[table_BJ].reshape(B, -1, *pages_XZCH.shape[2:])
    layer = kv.to_slots(*(rows_BSCH[:, :, first::2, :H] for first in (0, 1)))
    GATHERED.append(rows_BSCH.shape[1])
    slots_BS = jnp.broadcast_to(jnp.arange(rows_BSCH.shape[1]), rows_BSCH.shape[:2])
    return attend_cached(q, layer, cached_mask(positions_BT, slots_BS, window), scoring)


@cache
def _model() -> Model:
    """A token sees 6 tokens."""
    return Model(replace(preset("tiny"), layers=1, window=6, local_layers=(True,), attention_softcap=20.0))


def _sampled(shape: tuple[int, ...], rows: int | None) -> Completions:
    mesh = sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    model, tokenizer = _model(), dataclasses.replace(byte_tokenizer(), eos_ids=tuple(range(100, 120)))
    with jax.set_mesh(mesh):
        weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
        params = jax.jit(model.init, out_shardings=weights)(jax.random.key(1))
        engine = NativeEngine(model, tokenizer, partial(put, mesh), jax.device_get, mesh, rows)
        return engine.generate(params, PROMPTS, 6, Sampling(24, 40), Draw(7, 3))


def test_a_rollout_in_pages_says_what_one_in_slots_says(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that take over, two prompts at a time, and grow; over devices that split rows and key heads."""
    plain = _sampled((1,), None)
    request.getfixturevalue("in_pages")
    monkeypatch.setattr(buckets, "FIRST_SLOTS", 16)
    paged = _sampled((2, 1, 2), 16)
    assert len(set(GATHERED)) > 1, "the dense cache was read, or never grown"
    assert [paged.tokens(row) for row in range(24)] == [plain.tokens(row) for row in range(24)]
    for row, count in enumerate(plain.lengths_N):
        np.testing.assert_allclose(paged.logps_NT[row, :count], plain.logps_NT[row, :count], atol=1e-5)
