"""Machine code for sampling on a CPU: products and attention, how XLA calls them, and what a sampler gives them."""

import ctypes
import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, preset
from pttrainer.models.config import ModelConfig
from pttrainer.models.decoding import decode_backend
from pttrainer.models.lora.adapters import Adapters
from pttrainer.rollout.disaggregated.weight_sync import named
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.decoding_weights import DecodingWeights
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.runtime.cpu_kernels import blocked_matmul, cached_attention, jit, softmax
from pttrainer.runtime.cpu_kernels.blocked_matmul import product, to_column_blocks
from pttrainer.runtime.cpu_kernels.register_tile import (
    AVX2,
    AVX512,
    NEON,
    TERMS_PER_CHAIN,
    RegisterTile,
    tile_for,
)

TILES = pytest.mark.parametrize("tile", [AVX512, AVX2, NEON], ids=lambda tile: tile.name)


def multiplied(x: np.ndarray, w: np.ndarray, tile: RegisterTile) -> np.ndarray:
    together = jax.jit(
        lambda x, w: product(x, to_column_blocks(w, tile.width), jit.target(blocked_matmul.NAME, tile))[:, : w.shape[1]]
    )
    return np.asarray(together(x, w))


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@TILES
@pytest.mark.parametrize("M", [1, 7, 8, 9, 33])
@pytest.mark.parametrize("K", [1, TERMS_PER_CHAIN, 3 * TERMS_PER_CHAIN + 17])
@pytest.mark.parametrize("N", [1, 70])
def test_a_product_is_right_to_rounding(tile: RegisterTile, M: int, K: int, N: int) -> None:
    x, w = numbers(M, M, K), numbers(N, K, N)
    wanted = x.astype(np.float64) @ w
    bound = 1e-6 * np.sqrt(K) * (np.abs(x).astype(np.float64) @ np.abs(w)) + 1e-30
    assert (np.abs(multiplied(x, w, tile) - wanted) <= bound).all()


@TILES
def test_a_row_has_the_same_bits_with_any_rows_beside_it_and_on_any_number_of_threads(tile: RegisterTile) -> None:
    x, w = numbers(0, 37, 700), numbers(1, 700, 512)
    # Together on several threads, a row on one.
    assert x.size * w.shape[1] > 2 * blocked_matmul.MIN_TERMS_PER_THREAD
    assert x.shape[1] * w.shape[1] < 2 * blocked_matmul.MIN_TERMS_PER_THREAD
    together = multiplied(x, w, tile)
    for row in range(0, 37, 4):
        np.testing.assert_array_equal(multiplied(x[row : row + 1], w, tile)[0], together[row])
    for _ in range(20):
        np.testing.assert_array_equal(multiplied(x, w, tile), together)


def test_processors_with_other_vectors_make_the_same_bits() -> None:
    x, w = numbers(0, 9, 700), numbers(1, 700, 96)
    first = multiplied(x, w, AVX512)
    for tile in (AVX2, NEON):
        np.testing.assert_array_equal(multiplied(x, w, tile), first)


def test_what_is_not_a_number_stays_where_it_is() -> None:
    x, w = numbers(0, 9, 40), numbers(1, 40, 64)
    x[3, 7], w[5, 33] = np.inf, np.nan
    finite = np.isfinite(multiplied(x, w, AVX512))
    wanted = np.ones((9, 64), bool)
    wanted[3], wanted[:, 33] = False, False
    np.testing.assert_array_equal(finite, wanted)


def test_the_tile_is_that_of_the_processor() -> None:
    assert tile_for({"avx512f": True, "avx2": True, "fma": True}, "x86_64") == AVX512
    assert tile_for({"avx2": True, "fma": True}, "x86_64") == AVX2
    assert tile_for({}, "arm64") == tile_for({}, "aarch64") == NEON
    assert tile_for({"avx2": True, "fma": False}, "x86_64") is None


class Cached(NamedTuple):
    """What attention of one token reads. q [B, K, R, H]; keys, values and which are seen, own and of P prompts."""

    q: np.ndarray
    own: tuple[np.ndarray, np.ndarray, np.ndarray]
    prompt: tuple[np.ndarray, np.ndarray, np.ndarray]

    def attended(self, tile: RegisterTile) -> np.ndarray:
        """By machine code."""
        call = jit.target(cached_attention.NAME, tile)
        return np.asarray(jax.jit(lambda q, own, prompt: cached_attention.attend(q, own, prompt, call))(*self))

    def rows(self, which: slice) -> Self:
        """These rows alone; each has a prompt of its own."""
        return Cached(self.q[which], *(tuple(x[which] for x in part) for part in self[1:]))

    def wanted(self) -> np.ndarray:
        """In float64."""
        G = len(self.q) // len(self.prompt[0])
        shared = [np.repeat(x, G, axis=0) for x in self.prompt[:2]]
        k, v = np.concatenate([shared[0], self.own[0]], 3), np.concatenate([shared[1], self.own[1]], 2)
        visible = np.concatenate([self.prompt[2], self.own[2]], 1)[:, None, None]
        scores = np.where(visible, np.einsum("bkrh,bkhs->bkrs", self.q.astype(np.float64), k), softmax.MASKED_SCORE)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bkrs,bksh->bkrh", weights / weights.sum(-1, keepdims=True), v)


def cached(B: int, P: int, K: int, R: int, H: int, S: int, X: int) -> Cached:
    """The first row sees nothing."""
    mask, prompt_mask = np.random.default_rng(0).random((B, S)) < 0.6, np.random.default_rng(1).random((B, X)) < 0.6
    mask[0], prompt_mask[0] = False, False
    own = numbers(2, B, K, H, S), numbers(3, B, K, S, H), mask
    return Cached(
        numbers(4, B, K, R, H) * np.float32(H**-0.5), own, (numbers(5, P, K, H, X), numbers(6, P, K, X, H), prompt_mask)
    )


SIZES = [(8, 8, 2, 3, 64, 192, 0), (8, 2, 2, 3, 64, 128, 64), (6, 6, 1, 9, 32, 48, 80), (1, 1, 1, 1, 32, 32, 0)]


@TILES
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention_is_right_to_rounding(tile: RegisterTile, sizes: tuple[int, ...]) -> None:
    of = cached(*sizes)
    np.testing.assert_allclose(of.attended(tile), of.wanted(), atol=3e-6)


@TILES
def test_attention_of_a_row_has_the_same_bits_alone_and_on_any_processor(tile: RegisterTile) -> None:
    of = cached(8, 8, 2, 3, 64, 128, 64)
    together = of.attended(tile)
    np.testing.assert_array_equal(together, of.attended(AVX512))
    for row in (0, 5):
        np.testing.assert_array_equal(of.rows(slice(row, row + 1)).attended(tile)[0], together[row])


def test_scores_may_be_far_apart_or_all_alike() -> None:
    of = cached(4, 4, 1, 2, 32, 64, 32)
    for factor in (0.0, 1e-3, 1.0, 30.0, 1e4):
        scaled = of._replace(q=of.q * np.float32(factor))
        np.testing.assert_allclose(scaled.attended(AVX512), scaled.wanted(), atol=3e-6 * (1 + factor))
        assert np.isfinite(scaled.attended(AVX512)).all()


def test_a_row_that_is_not_a_number_does_not_harm_others() -> None:
    of = cached(4, 4, 1, 2, 32, 64, 32)
    broken = of._replace(q=of.q.copy())
    broken.q[2] = np.nan
    after, before = broken.attended(AVX512), of.attended(AVX512)
    assert np.isnan(after[2]).all()
    np.testing.assert_array_equal(np.delete(after, 2, 0), np.delete(before, 2, 0))


# How XLA calls: a handler in C's words, so that the seam is tested with threads that fail, or come late.


class Extended(ctypes.Structure):
    """What every structure of the interface begins with."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p))


class Buffer(Extended):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class Version(Extended):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


class Functions(Extended):
    _fields_ = (("api_version", Version), ("internal_api", ctypes.c_void_p), ("functions", ctypes.c_void_p * 18))


class Values(Extended):
    _fields_ = (("size", ctypes.c_int64), ("types", ctypes.c_void_p), ("values", ctypes.POINTER(ctypes.c_void_p)))


class Frame(Extended):
    _fields_ = (
        ("api", ctypes.POINTER(Functions)),
        ("ctx", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("args", Values),
        ("rets", Values),
        ("attrs", Values),
        ("future", ctypes.c_void_p),
    )


class Schedule(Extended):
    _fields_ = (("ctx", ctypes.c_void_p), ("task", ctypes.c_void_p), ("data", ctypes.c_void_p))


class Count(Extended):
    _fields_ = (("ctx", ctypes.c_void_p), ("num_threads", ctypes.POINTER(ctypes.c_int64)))


class Destroy(Extended):
    _fields_ = (("error", ctypes.c_void_p),)


CONTEXT, ERROR = 0xC0, 0xE0
Task = tuple[Callable[[int], None], int]
CALLED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclasses.dataclass
class Pool:
    """A pool of threads as XLA's looks to a handler; how it behaves is the test's."""

    threads: int | None
    takes: int
    tasks: list[Task] = dataclasses.field(default_factory=list)
    destroyed: int = 0

    def multiply(self, x: np.ndarray, w: np.ndarray, tile: RegisterTile) -> np.ndarray:
        """Calls the handler as XLA would."""

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Schedule))
        def schedule(arguments: Any) -> int | None:
            call = arguments.contents
            assert (call.struct_size, call.ctx) == (ctypes.sizeof(Schedule), CONTEXT)
            if len(self.tasks) == self.takes:
                return ERROR
            self.tasks.append((CALLED(call.task), call.data))
            return None

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Count))
        def count(arguments: Any) -> int | None:
            call = arguments.contents
            assert (call.struct_size, call.ctx) == (ctypes.sizeof(Count), CONTEXT)
            if self.threads is None:
                return ERROR
            call.num_threads[0] = self.threads
            return None

        @ctypes.CFUNCTYPE(None, ctypes.POINTER(Destroy))
        def destroy(arguments: Any) -> None:
            assert arguments.contents.error == ERROR
            self.destroyed += 1

        functions = Functions()
        for index, function in ((2, destroy), (11, schedule), (12, count)):
            functions.functions[index] = ctypes.cast(function, ctypes.c_void_p).value
        stood = np.ascontiguousarray(np.asarray(to_column_blocks(jnp.array(w), tile.width)))
        y = np.full((x.shape[0], stood.shape[0] * tile.width), np.nan, np.float32)
        buffers = [buffer(of) for of in (x, stood, y)]
        frame = Frame(api=ctypes.pointer(functions), ctx=CONTEXT, stage=3)
        frame.args, frame.rets = values(buffers[:2]), values(buffers[2:])
        called = jit.compile_kernels(tile)[blocked_matmul.NAME]
        assert called(ctypes.addressof(frame)) is None
        return y[:, : w.shape[1]]


def buffer(of: np.ndarray) -> Buffer:
    return Buffer(data=of.ctypes.data, rank=of.ndim, dims=(ctypes.c_int64 * of.ndim)(*of.shape), dtype=11)


def values(buffers: list[Buffer]) -> Values:
    addresses = (ctypes.c_void_p * len(buffers))(*(ctypes.addressof(one) for one in buffers))
    return Values(size=len(buffers), values=ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p)))


LARGE = numbers(0, 32, 300), numbers(1, 300, 1000)


def is_right(y: np.ndarray) -> bool:
    x, w = LARGE
    return bool(np.allclose(y, x.astype(np.float64) @ w, atol=1e-3))


@TILES
def test_threads_that_come_when_all_is_done_find_nothing_and_harm_nothing(tile: RegisterTile) -> None:
    pool = Pool(threads=4, takes=9)
    y = pool.multiply(*LARGE, tile)
    assert is_right(y)
    assert len(pool.tasks) == 3
    kept = y.copy()
    for task, data in pool.tasks:
        task(data)
    np.testing.assert_array_equal(y, kept)


def test_a_pool_that_takes_few_tasks_or_none_costs_time_only() -> None:
    few = Pool(threads=4, takes=1)
    assert is_right(few.multiply(*LARGE, AVX512))
    assert (len(few.tasks), few.destroyed) == (1, 2)
    none = Pool(threads=None, takes=0)
    assert is_right(none.multiply(*LARGE, AVX512))
    assert (len(none.tasks), none.destroyed) == (0, 1)


def test_a_small_product_asks_for_no_thread() -> None:
    x, w = numbers(0, 2, 30), numbers(1, 30, 64)
    pool = Pool(threads=4, takes=9)
    np.testing.assert_allclose(pool.multiply(x, w, AVX512), x @ w, atol=1e-4)
    assert not pool.tasks


def test_a_product_asks_for_no_more_threads_than_it_is_worth() -> None:
    x, w = numbers(0, 8, 384), numbers(1, 384, 1024)
    pool = Pool(threads=64, takes=99)
    pool.multiply(x, w, AVX512)
    assert len(pool.tasks) == x.size * w.shape[1] // blocked_matmul.MIN_TERMS_PER_THREAD - 1 == 11


# What a sampler gives to machine code.

SAMPLING = Sampling(32, 96)
PROMPTS = [Prompt([97 + (5 * n + i) % 26 for i in range(40 + n)], n) for n in range(3)]


def model_and_params(**changed: Any) -> tuple[Model, Params]:
    model = Model(preset("tiny"), **changed)
    return model, jax.jit(model.init)(jax.random.key(0))


def completions(model: Model, params: Params, samples: int, rows: int | None, speculation: Any = None) -> Completions:
    engine = NativeEngine(model, byte_tokenizer(), rows=rows, speculation=speculation)
    return engine.generate(params, PROMPTS, samples, SAMPLING, Draw(0, 1))


WIDE = dataclasses.replace(preset("tiny"), head_dim=32)


WINDOWS = dataclasses.replace(WIDE, window=16, local_layers=(True, False))


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("config", "is_attention_coded", "samples", "rows"),
    [
        pytest.param(WIDE, True, 1, None, id="alone"),
        pytest.param(WIDE, True, 4, None, id="shared"),
        pytest.param(WINDOWS, True, 4, 4, id="refilled, windows"),
        pytest.param(preset("tiny"), False, 4, None, id="narrow heads"),
        pytest.param(dataclasses.replace(WIDE, attention_softcap=20.0), False, 1, None, id="soft cap"),
        pytest.param(dataclasses.replace(WIDE, sinks=True), False, 1, None, id="sinks"),
    ],
)
def test_samples_are_those_of_the_plain_program(
    config: ModelConfig, is_attention_coded: bool, samples: int, rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(config)
    params = jax.jit(model.init)(jax.random.key(0))
    calls: list[str] = []
    attend = cached_attention.attend
    monkeypatch.setattr(cached_attention, "attend", lambda *given: calls.append("attention") or attend(*given))
    coded = completions(model, params, samples, rows)
    assert bool(calls) == is_attention_coded
    monkeypatch.setattr(decode_backend, "kernels_for", lambda params: None)
    plain = completions(model, params, samples, rows)
    count = len(PROMPTS) * samples
    assert [coded.tokens(row) for row in range(count)] == [plain.tokens(row) for row in range(count)]
    np.testing.assert_allclose(coded.logps_NT, plain.logps_NT, atol=1e-5)


@pytest.mark.usefixtures("wide_vectors")
def test_adapters_of_matrices_and_embeddings_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(WIDE, adapters=Adapters(4, 8.0, ("q", "v", "down"), embeddings=True))
    base = jax.jit(model.init)(jax.random.key(0))
    here = jax.tree.map(lambda x: base["norm"]["scale"].sharding, model.trained(model.abstract()))
    adapters = model.init_adapters(here, 0)
    params = model.join_params(
        base, jax.tree.map(lambda x: x + 0.05 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), adapters)
    )
    coded = completions(model, params, 2, None)
    monkeypatch.setattr(decode_backend, "kernels_for", lambda params: None)
    plain = completions(model, params, 2, None)
    assert [coded.tokens(row) for row in range(6)] == [plain.tokens(row) for row in range(6)]
    np.testing.assert_allclose(coded.logps_NT, plain.logps_NT, atol=1e-5)
    assert [coded.tokens(row) for row in range(6)] != [
        completions(model.without_adapters, base, 2, None).tokens(row) for row in range(6)
    ]


@pytest.mark.usefixtures("wide_vectors")
def test_matrices_of_a_layer_come_in_strips_and_nothing_else() -> None:
    model, params = model_and_params(adapters=Adapters(4, 8.0, ("q", "down")))
    here = jax.tree.map(lambda x: params["norm"]["scale"].sharding, model.trained(model.abstract()))
    params = model.join_params(params, model.init_adapters(here, 0))
    wanted, blocked = model.for_decoding(params), DecodingWeights(model, None)(params)
    for before, layer in zip(wanted["layers"], blocked["layers"], strict=True):
        for (name, x), (_, plain) in zip(named(layer), named(before), strict=True):
            if plain.ndim == 2 and "lora" not in name:
                assert x.shape == (plain.shape[1] // 32, plain.shape[0], 32), name
                plain = to_column_blocks(plain, 32)
            np.testing.assert_array_equal(x, plain)


@pytest.mark.usefixtures("wide_vectors")
def test_other_formats_and_widths_that_do_not_divide_stay_as_they_are() -> None:
    model, params = model_and_params()
    half = dataclasses.replace(model, compute_dtype="bfloat16")
    weights = DecodingWeights(half, None)(params)
    assert decode_backend.HEAD_BLOCKS not in weights
    assert weights["layers"][0]["attention"]["q"].shape == (64, 64)
    odd = Model(dataclasses.replace(preset("tiny"), d_ff=100))
    weights = DecodingWeights(odd, None)(jax.jit(odd.init)(jax.random.key(0)))
    assert weights["layers"][0]["mlp"]["up"].shape == (64, 100)
    assert weights["layers"][0]["mlp"]["down"].shape == (2, 100, 32)


def test_weights_on_several_devices_have_no_strips() -> None:
    alone = jnp.ones((8, 8))
    mesh = jax.make_mesh((8,), ("x",))
    spread = jax.device_put(alone, jax.NamedSharding(mesh, jax.P("x")))
    assert decode_backend.kernels_for({"a": alone}) == decode_backend.host_kernels()
    assert decode_backend.kernels_for({"a": alone, "b": spread}) is None


def test_without_llvmlite_there_are_no_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert jit.host_tile.__wrapped__() is None
