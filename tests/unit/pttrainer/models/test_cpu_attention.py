"""Attention of packed rows by machine code for a CPU: values, gradients, what it chooses, and what it never holds."""

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.batch import Prompts
from pttrainer.models import Model, preset
from pttrainer.models.attention import flash_kernels, shared_prefix
from pttrainer.models.config import ModelConfig
from pttrainer.runtime.cpu_kernels import jit, packed_attention, softmax
from pttrainer.runtime.cpu_kernels.register_tile import AVX2, AVX512, NEON, RegisterTile
from pttrainer.runtime.cpu_kernels.score_blocks import PROMPT, QUERIES
from pttrainer.runtime.distributed import sharding

TILES = pytest.mark.parametrize("tile", [AVX512, AVX2, NEON], ids=lambda tile: tile.name)


class Attended(NamedTuple):
    """The result, and the gradients of queries, keys and values."""

    out: np.ndarray
    d_q: np.ndarray
    d_k: np.ndarray
    d_v: np.ndarray


class Packed(NamedTuple):
    """Inputs of a call, and the slope of its result. segments [B, T]; the window hides nothing if it is None."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    slope: np.ndarray
    segments: np.ndarray
    window: int | None = None
    shared: int = 0

    @property
    def length(self) -> int:
        return self.q.shape[1]

    def attended(self, tile: RegisterTile = AVX512) -> Attended:
        """By machine code."""
        calls = packed_attention.Calls(
            *(jit.target(name, tile) for name in (packed_attention.FORWARD, packed_attention.BACKWARD)), "kept"
        )
        limits = np.array([self.length if self.window is None else self.window, self.shared], np.int32)

        def both(q: Any, k: Any, v: Any) -> Any:
            out, back = jax.vjp(lambda *qkv: packed_attention.attend(calls, *qkv, self.segments, limits), q, k, v)
            return out, *back(self.slope)

        return Attended(*map(np.asarray, jax.jit(both)(self.q, self.k, self.v)))

    def rows(self, which: slice) -> Self:
        return self._replace(**{name: getattr(self, name)[which] for name in ("q", "k", "v", "slope", "segments")})

    def visible(self) -> np.ndarray:
        """[B, T, T]."""
        slots = np.arange(self.length)
        apart = slots[:, None] - slots
        near = (apart >= 0) & (apart < (self.window or self.length))
        behind = slots >= self.shared
        same = (self.segments[:, :, None] == self.segments[:, None]) & (behind[:, None] == behind)
        of_prompt = ~behind & (self.segments == PROMPT)
        return (near & same) | (behind[:, None] & of_prompt[:, None])

    def wanted(self) -> Attended:
        """In float64."""
        N, K = self.q.shape[2], self.k.shape[2]
        q, slope = self.q.astype(np.float64), self.slope.astype(np.float64)
        k, v = (np.repeat(x.astype(np.float64), N // K, axis=2) for x in (self.k, self.v))
        scores = np.where(self.visible()[:, None], np.einsum("btnh,bsnh->bnts", q, k), softmax.MASKED_SCORE)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        d_weights = np.einsum("btnv,bsnv->bnts", slope, v)
        d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True))
        d_k, d_v = np.einsum("bnts,btnh->bsnh", d_scores, q), np.einsum("bnts,btnv->bsnv", weights, slope)
        of_key_heads = lambda x: x.reshape(*x.shape[:2], K, N // K, -1).sum(3)  # noqa: E731
        return Attended(
            np.einsum("bnts,bsnv->btnv", weights, v),
            np.einsum("bnts,bsnh->btnh", d_scores, k),
            of_key_heads(d_k),
            of_key_heads(d_v),
        )


def packed(
    B: int, T: int, N: int, K: int, H: int, V: int, lengths: tuple[int, ...] = (), window: int | None = None
) -> Packed:
    """Rows whose first examples have these lengths; the first row ends with padding, if they do not fill it."""
    random = np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape, np.float32)  # noqa: E731
    segments = np.ones((B, T), np.int32)
    for number, start in enumerate(np.cumsum([0, *lengths])[:-1]):
        segments[:, start:] = number + 2
    if lengths:
        segments[0, sum(lengths) :] = 0
    inputs = draw(B, T, N, H) * np.float32(H**-0.5), draw(B, T, K, H), draw(B, T, K, V), draw(B, T, N, V)
    return Packed(*inputs, segments, window)


def assert_near(ours: Attended, wanted: Attended, bound: float = 3e-6) -> None:
    for name, one, other in zip(Attended._fields, ours, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=bound * max(1.0, np.abs(other).max()), err_msg=name)


@TILES
@pytest.mark.parametrize(
    "of",
    [
        pytest.param(packed(2, 2 * QUERIES, 4, 2, 32, 32), id="whole blocks"),
        pytest.param(packed(3, 77, 6, 2, 64, 32), id="a block that is not whole, narrow values"),
        pytest.param(packed(1, 1, 1, 1, 32, 64), id="one token, wide values"),
        pytest.param(packed(2, 300, 2, 2, 64, 64, (3, 40, 130)), id="packed, more keys than a chain of terms"),
        pytest.param(packed(2, 130, 3, 1, 32, 32, window=20), id="window"),
        pytest.param(packed(2, 130, 2, 1, 32, 32, (70,), window=33), id="packed, window"),
    ],
)
def test_values_and_gradients_are_right_to_rounding(tile: RegisterTile, of: Packed) -> None:
    assert_near(of.attended(tile), of.wanted())


@pytest.mark.parametrize("prompt", [QUERIES, 45], ids=["whole blocks", "a block that is not whole"])
def test_rows_behind_a_shared_prompt_see_it_and_themselves(prompt: int) -> None:
    of = packed(2, prompt + 3 * 50, 4, 2, 32, 32, (prompt, 50, 50))
    segments = of.segments - 1
    segments[0, prompt - 8 : prompt] = 0
    segments[:, -6:] = 0
    shared = of._replace(segments=segments, shared=prompt)
    assert (shared.visible()[0, -10] == np.r_[np.ones(prompt - 8), np.zeros(108), np.ones(41), np.zeros(9)]).all()
    assert_near(shared.attended(), shared.wanted())


@TILES
def test_a_row_has_the_same_bits_alone_and_on_any_processor(tile: RegisterTile) -> None:
    of = packed(5, 100, 6, 2, 64, 64, (30, 30))
    together = of.attended(tile)
    for name, one, other in zip(Attended._fields, together, of.attended(AVX512), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)
    for row in (0, 3):
        alone = of.rows(slice(row, row + 1)).attended(tile)
        for name, one, other in zip(Attended._fields, alone, together, strict=True):
            np.testing.assert_array_equal(one[0], other[row], err_msg=name)


def test_threads_make_no_difference() -> None:
    of = packed(4, 256, 4, 2, 64, 64)
    assert of.q.size * of.length > 4 * packed_attention.MIN_TERMS_PER_THREAD
    first = of.attended()
    for _ in range(10):
        for one, other in zip(of.attended(), first, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("factor", [0.0, 1e-3, 30.0, 1e4])
def test_scores_may_be_far_apart_or_all_alike(factor: float) -> None:
    of = packed(2, 70, 2, 1, 32, 32)
    scaled = of._replace(q=of.q * np.float32(factor))
    ours = scaled.attended()
    assert all(np.isfinite(x).all() for x in ours)
    wanted = scaled.wanted()
    np.testing.assert_allclose(ours.out, wanted.out, atol=3e-6 * (1 + factor))
    if factor <= 1:
        assert_near(ours._replace(d_k=wanted.d_k), wanted)
        np.testing.assert_allclose(ours.d_k, wanted.d_k, atol=1e-5)


def test_what_is_not_a_number_stays_in_its_row_and_example() -> None:
    of = packed(3, 64, 2, 1, 32, 32, (40, 24))
    broken = of._replace(q=of.q.copy())
    broken.q[1, 10] = np.nan
    before, after = of.attended(), broken.attended()
    assert np.isnan(after.out[1, 10]).all()
    np.testing.assert_array_equal(np.delete(after.out[1], 10, 0), np.delete(before.out[1], 10, 0))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one[::2], other[::2])
        np.testing.assert_array_equal(one[1, 40:], other[1, 40:])


# What a model gives to machine code.

SMALL = dataclasses.replace(preset("tiny"), head_dim=32)
WINDOWS = dataclasses.replace(SMALL, window=16, local_layers=(True, False))
CAPPED, WITH_SINKS = dataclasses.replace(SMALL, attention_softcap=20.0), dataclasses.replace(SMALL, sinks=True)
SEGMENTS = np.array([[1] * 30 + [2] * 17 + [0] * 3, [1] * 50])
POSITIONS = np.array([[*range(30), *range(17), *range(3)], [*range(50)]])
TOKENS = np.random.default_rng(0).integers(1, 200, SEGMENTS.shape)


class Run(NamedTuple):
    """Sums of hidden states of tokens that count, their gradient, and the calls in the program."""

    sums: Any
    gradient: Any
    forward: int
    backward: int


def run(config: ModelConfig, *, grouped: bool = False, **changed: Any) -> Run:
    model = Model(config, **changed)
    params = jax.jit(model.init)(jax.random.key(0))
    prompts = Prompts(TOKENS[:1, :20], POSITIONS[1:, :20], np.array([[1] * 17 + [0] * 3])) if grouped else None
    positions = POSITIONS + 17 if grouped else POSITIONS
    segments = np.minimum(SEGMENTS, 1) if grouped else SEGMENTS

    def loss(params: Any) -> tuple[Any, Any]:
        hidden_BTD = model.forward(params, TOKENS, positions, segments, prompts=prompts)
        sums_BD = jnp.sum(jnp.where(segments[..., None] > 0, hidden_BTD, 0.0) ** 3, axis=1)
        return jnp.sum(sums_BD), sums_BD

    program = jax.jit(jax.grad(loss, has_aux=True)).lower(params)
    text = program.as_text()
    gradient, sums = program.compile()(params)
    backward = text.count(f'{packed_attention.BACKWARD}"') + text.count(f"@{AVX512.name}_{packed_attention.BACKWARD}(")
    every = text.count(f"{AVX512.name}_{packed_attention.FORWARD}")
    return Run(sums, gradient, every - backward, backward)


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("config", "grouped", "is_coded"),
    [
        pytest.param(SMALL, False, True, id="packed"),
        pytest.param(WINDOWS, False, True, id="windows in some layers"),
        pytest.param(SMALL, True, True, id="a shared prompt"),
        pytest.param(WINDOWS, True, False, id="a shared prompt and windows"),
        pytest.param(CAPPED, False, False, id="soft cap"),
        pytest.param(WITH_SINKS, False, False, id="sinks"),
        pytest.param(preset("tiny"), False, False, id="narrow heads"),
    ],
)
def test_a_model_computes_what_the_plain_program_does(
    config: ModelConfig, grouped: bool, is_coded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    coded = run(config, grouped=grouped)
    assert (coded.forward, coded.backward) == ((1, 1) if is_coded else (0, 0))
    monkeypatch.setattr(flash_kernels, "_columns", lambda platform: None)
    plain = run(config, grouped=grouped)
    assert (plain.forward, plain.backward) == (0, 0)
    for one, other in zip(jax.tree.leaves(coded[:2]), jax.tree.leaves(plain[:2]), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * np.abs(other).max())


@pytest.mark.usefixtures("wide_vectors")
def test_a_layer_attends_once_more_where_it_keeps_its_input_alone() -> None:
    assert run(SMALL, remat="full").forward == 2
    assert run(SMALL, remat="save-context").forward == 1


@pytest.mark.usefixtures("wide_vectors")
def test_no_array_of_scores_exists() -> None:
    T, heads = 4096, SMALL.heads
    shapes = [jax.ShapeDtypeStruct((1, T, of, 32), jnp.float32) for of in (heads, SMALL.kv_heads, SMALL.kv_heads)]
    segments = jax.ShapeDtypeStruct((1, T), jnp.int32)

    def loss(q: Any, k: Any, v: Any, segments: Any) -> Any:
        scoring = flash_kernels.Scoring(1.0)
        return jnp.sum(flash_kernels.attend("cpu", q, k, v, segments, None, scoring) ** 2)

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes, segments).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * 4 * T * heads * 32


def test_without_machine_code_the_plain_program_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "host_tile", lambda: None)
    assert run(SMALL).forward == 0


@pytest.mark.usefixtures("wide_vectors")
def test_several_devices_take_the_plain_program() -> None:
    with jax.set_mesh(sharding.make_mesh((1,), jax.devices()[:1])):
        assert run(SMALL).forward == 1
    with jax.set_mesh(sharding.make_mesh((2,), jax.devices()[:2])):
        assert run(SMALL).forward == 0


def test_the_segments_of_a_shared_prompt() -> None:
    prompts = Prompts(jnp.ones((2, 3)), jnp.arange(3)[None].repeat(2, 0), jnp.array([[1, 1, 1], [1, 1, 0]]))
    own = jnp.array([[1, 1], [1, 0], [1, 1], [0, 0]])
    made = shared_prefix.masks(jnp.ones((2, 3, 3), bool), prompts, jnp.zeros((4, 2), int), own, None)
    np.testing.assert_array_equal(made.segments_PX, [[1, 1, 1, 2, 2, 3, 0], [1, 1, 0, 2, 2, 0, 0]])
