"""The native engine: what it samples, and that a sample depends on nothing but itself."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.losses.chunked_logprobs import token_stats
from pttrainer.models import Model, Params, preset
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native import buckets, native_engine
from pttrainer.rollout.native.buckets import fewer_rows, prefill_piece, slots_for
from pttrainer.rollout.native.decoding_weights import DecodingWeights
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.native.sizes.max_rows import rows_at_once, rows_that_fit
from pttrainer.rollout.native.token_sampling import choose, row_keys, uniforms
from pttrainer.rollout.sampler import completion_text
from pttrainer.runtime.distributed import sharding

PROMPTS = [Prompt([256, 259, *b"one"], 0), Prompt([256, 259, *b"two and more"], 1), Prompt([256, *b"3"], 2)]
SAMPLING = Sampling(max_new_tokens=24, max_length=64)
EOS = 257


@lru_cache
def model_and_params(scale: float = 8.0) -> tuple[Model, Params]:
    """A tiny model. A fresh one is uniform over tokens; a scaled embedding makes it say something."""
    model = Model(preset("tiny"))
    params = jax.jit(model.init)(jax.random.key(1))
    return model, {**params, "embedding": params["embedding"] * scale}


@lru_cache
def engine() -> NativeEngine:
    return NativeEngine(model_and_params()[0], byte_tokenizer())


def generate(
    prompts: list[Prompt], samples: int = 1, sampling: Sampling = SAMPLING, draw: Draw | None = None
) -> Completions:
    return engine().generate(model_and_params()[1], prompts, samples, sampling, draw or Draw(7, 3))


@lru_cache
def forward() -> Callable[[jax.Array], jax.Array]:
    """Logits of one padded row."""
    model, params = model_and_params()

    def logits(tokens_T: jax.Array) -> jax.Array:
        tokens = tokens_T[None]
        hidden = model.forward(params, tokens, jnp.arange(tokens.shape[1])[None], jnp.ones_like(tokens))
        return (hidden @ model.head(params).T)[0]

    return jax.jit(logits)


def logits_of(prompt: Prompt, tokens: list[int]) -> np.ndarray:
    """What the training forward predicts for each token of a completion."""
    ids = [*prompt.tokens, *tokens]
    padded = jnp.array(ids + [0] * (256 - len(ids)))
    return np.asarray(forward()(padded))[len(prompt.tokens) - 1 : len(ids) - 1]


def logps_of(prompt: Prompt, tokens: list[int], temperature: float = 1.0) -> np.ndarray:
    logits_TV = logits_of(prompt, tokens).astype(np.float64) / temperature
    logps_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
    return logps_TV[np.arange(len(tokens)), tokens]


def test_weights_that_are_moved_part_by_part_are_those_that_decode_asks_for() -> None:
    plain, params = model_and_params()
    model = dataclasses.replace(plain, compute_dtype="bfloat16")
    moved, wanted = DecodingWeights(model, None)(params), model.for_decoding(params)
    assert jax.tree.structure(moved) == jax.tree.structure(wanted)
    assert all(
        x.dtype == y.dtype and (x == y).all() for x, y in zip(*map(jax.tree.leaves, (moved, wanted)), strict=True)
    )


def test_log_probs_are_those_of_the_training_forward() -> None:
    done = generate(PROMPTS, samples=2, sampling=dataclasses.replace(SAMPLING, temperature=0.7))
    for row in range(6):
        wanted = logps_of(PROMPTS[row // 2], done.tokens(row), 0.7)
        np.testing.assert_allclose(done.logps_NT[row, : done.lengths_N[row]], wanted, atol=2e-5)


def test_sampler_and_trainer_agree_on_log_probs_to_a_millionth() -> None:
    """Both in float32, the trainer by the function that every loss goes through."""
    model, params = model_and_params()
    prompts = [PROMPTS[n % 3]._replace(number=n) for n in range(12)]
    done = generate(prompts, samples=2, sampling=Sampling(40, 64))
    tokens_NT, targets_NT = np.zeros((2, 24, 64), np.int32)
    mask_NT, sampler_NT = np.zeros((2, 24, 64), np.float32)
    for row in range(24):
        ids = [*prompts[row // 2].tokens, *done.tokens(row)]
        completion = slice(len(ids) - done.lengths_N[row] - 1, len(ids) - 1)
        tokens_NT[row, : len(ids) - 1], targets_NT[row, : len(ids) - 1] = ids[:-1], ids[1:]
        mask_NT[row, completion], sampler_NT[row, completion] = 1.0, done.logps_NT[row, : done.lengths_N[row]]

    @jax.jit
    def trainer_logps() -> jax.Array:
        positions_NT = jnp.broadcast_to(jnp.arange(64), tokens_NT.shape)
        hidden = model.forward(params, jnp.array(tokens_NT), positions_NT, jnp.ones_like(tokens_NT))
        stats = token_stats(hidden, model.head(params), jnp.array(targets_NT), jnp.array(mask_NT))
        return stats.logps_BT

    assert mask_NT.sum() > 500
    assert (np.abs(np.asarray(trainer_logps()) - sampler_NT) * mask_NT).sum() / mask_NT.sum() <= 1e-6


def test_a_sample_does_not_depend_on_batch_neighbours_or_order() -> None:
    together = generate(PROMPTS, samples=3)
    for p, prompt in enumerate(PROMPTS):
        alone = generate([prompt], 1)
        assert alone.tokens(0) == together.tokens(3 * p)
        np.testing.assert_allclose(alone.logps_NT[0], together.logps_NT[3 * p], atol=1e-5)
    backwards = generate(PROMPTS[::-1], samples=3)
    assert backwards.tokens(0) == together.tokens(6)
    np.testing.assert_allclose(backwards.logps_NT[0], together.logps_NT[6], atol=1e-5)


def test_the_same_call_gives_the_same_bits() -> None:
    first, second = generate(PROMPTS, samples=2), generate(PROMPTS, samples=2)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_seed_step_prompt_number_and_sample_draws_anew() -> None:
    base = generate(PROMPTS[:1], samples=2)
    assert base.tokens(0) != base.tokens(1)
    assert generate(PROMPTS[:1], draw=Draw(8, 3)).tokens(0) != base.tokens(0)
    assert generate(PROMPTS[:1], draw=Draw(7, 4)).tokens(0) != base.tokens(0)
    assert generate([PROMPTS[0]._replace(number=9)]).tokens(0) != base.tokens(0)


def test_completions_end_with_the_end_token_and_keep_it() -> None:
    done = generate([PROMPTS[0]._replace(number=n) for n in range(40)], sampling=Sampling(200, 256))
    ended = np.flatnonzero(done.ended_N)
    assert len(ended) > 5
    for row in range(40):
        tokens = done.tokens(row)
        assert (tokens[-1] == EOS) == bool(done.ended_N[row])
        assert EOS not in tokens[:-1]
        assert done.ended_N[row] or len(tokens) == 200
    np.testing.assert_allclose(
        done.logps_NT[ended[0], : done.lengths_N[ended[0]]], logps_of(PROMPTS[0], done.tokens(ended[0])), atol=5e-5
    )


def test_every_end_token_ends_a_completion() -> None:
    model, params = model_and_params()
    tokenizer = dataclasses.replace(byte_tokenizer(), eos_ids=(257, *range(97, 123)))
    done = NativeEngine(model, tokenizer).generate(params, PROMPTS, 4, SAMPLING, Draw(7, 3))
    reference = generate(PROMPTS, samples=4)
    for row in range(12):
        tokens = reference.tokens(row)
        ends = [i for i, token in enumerate(tokens) if token in tokenizer.eos_ids]
        assert done.tokens(row) == (tokens[: ends[0] + 1] if ends else tokens)
        assert done.ended_N[row] == bool(ends)


@pytest.mark.parametrize("samples", [1, 2], ids=["in the prompt's slots", "beside a shared prompt"])
def test_growing_the_cache_changes_nothing(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate(PROMPTS, samples=samples, sampling=Sampling(40, 64))
    monkeypatch.setattr("pttrainer.rollout.native.buckets.FIRST_SLOTS", 24)
    grown = generate(PROMPTS, samples=samples, sampling=Sampling(40, 64))
    for row in range(3 * samples):
        assert grown.tokens(row) == whole.tokens(row)
    np.testing.assert_allclose(grown.logps_NT, whole.logps_NT, atol=1e-5)


@pytest.mark.parametrize(("rows", "programs"), [(1, 2), (4, 2), (32, 3)])
def test_rows_that_are_taken_over_say_what_they_would_have_said_alone(
    rows: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs: for 24 and for 48 slots, and for the quarter of 32 rows that ends last; taking over needs none."""
    prompts = [PROMPTS[n % 3]._replace(number=n) for n in range(20)]
    sampling = Sampling(48, 64)
    model, params = model_and_params()
    often_ended = dataclasses.replace(byte_tokenizer(), eos_ids=tuple(range(250, 264)))
    whole = NativeEngine(model, often_ended).generate(params, prompts, 2, sampling, Draw(7, 3))
    assert len(set(whole.lengths_N)) > 5
    monkeypatch.setattr("pttrainer.rollout.native.buckets.FIRST_SLOTS", 24)
    engine = NativeEngine(model, often_ended, rows=rows)
    advance = engine.compiled(sampling)["advance"]
    before = advance._cache_size()
    few = engine.generate(params, prompts, 2, sampling, Draw(7, 3))
    assert advance._cache_size() - before == programs
    for row in range(40):
        assert few.tokens(row) == whole.tokens(row)
    np.testing.assert_array_equal(few.ended_N, whole.ended_N)
    np.testing.assert_allclose(few.logps_NT, whole.logps_NT, atol=1e-5)


def test_rows_that_are_taken_over_heed_stop_strings() -> None:
    sampling = dataclasses.replace(SAMPLING, stop=("a", "e", "T"))
    model, params = model_and_params()
    whole = generate(PROMPTS, samples=4, sampling=sampling)
    few = NativeEngine(model, byte_tokenizer(), rows=4).generate(params, PROMPTS, 4, sampling, Draw(7, 3))
    assert [few.tokens(row) for row in range(12)] == [whole.tokens(row) for row in range(12)]


def test_a_prompt_is_computed_in_pieces_with_the_result_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Prompt([256, *range(n)], n) for n in (3, 40, 90, 16)]
    sampling = Sampling(8, 128, temperature=1.1)
    whole = generate(prompts, samples=2, sampling=sampling)
    monkeypatch.setattr("pttrainer.rollout.native.buckets.PREFILL_TOKENS", 100)
    assert prefill_piece(4, 96) == 24
    model, params = model_and_params()
    pieces = NativeEngine(dataclasses.replace(model, remat="full"), byte_tokenizer())  # compiled anew
    done = pieces.generate(params, prompts, 2, sampling, Draw(7, 3))
    np.testing.assert_array_equal(done.tokens_NT, whole.tokens_NT)
    np.testing.assert_allclose(done.logps_NT, whole.logps_NT, atol=1e-5)


def test_prompts_that_leave_no_room_are_answered_with_nothing() -> None:
    model, params = model_and_params()
    prompts = [PROMPTS[n % 3]._replace(number=n) for n in range(9)]
    done = NativeEngine(model, byte_tokenizer(), rows=2).generate(params, prompts, 1, Sampling(24, 5), Draw(7, 3))
    assert [bool(length) for length in done.lengths_N] == [False, False, True] * 3
    assert not done.ended_N[[0, 1]].any()


def test_memory_decides_how_many_rows_are_sampled_at_once() -> None:
    model = model_and_params()[0]
    per_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, key heads, head size, bytes
    assert rows_that_fit(model, 100) == 2 * 2**30 // (100 * per_token)
    assert rows_at_once(model, 100) == buckets.ROWS_ON_CPU
    assert rows_at_once(model, 10**6) == 2 * 2**30 // (10**6 * per_token) < buckets.ROWS_ON_CPU


def test_a_rollout_that_few_rows_are_left_of_shrinks_to_a_quarter_on_every_device() -> None:
    assert [fewer_rows(rows, 1) for rows in (256, 64, 40, 32, 31)] == [64, 16, 10, 8, 0]
    assert [fewer_rows(rows, 4) for rows in (256, 40)] == [64, 0]


def test_prompt_and_completion_stay_within_the_sequence() -> None:
    done = generate(PROMPTS, sampling=Sampling(24, 12))
    for row, prompt in enumerate(PROMPTS):
        assert done.lengths_N[row] == max(0, 12 - len(prompt.tokens)) or done.ended_N[row]
    assert not done.ended_N[1]


def test_a_minimum_length_puts_the_end_off() -> None:
    prompts = [PROMPTS[0]._replace(number=n) for n in range(40)]
    free = generate(prompts, sampling=Sampling(60, 128))
    bound = generate(prompts, sampling=Sampling(60, 128, min_new_tokens=30))
    assert free.lengths_N.min() < 30
    assert bound.lengths_N.min() >= 30
    row = int(np.argmin(free.lengths_N))  # its log-probs are the model's all the same
    np.testing.assert_allclose(
        bound.logps_NT[row, : bound.lengths_N[row]], logps_of(prompts[row], bound.tokens(row)), atol=5e-5
    )


def test_a_stop_string_ends_the_completion_with_the_token_that_completes_it() -> None:
    free = generate(PROMPTS, samples=4)
    text = [byte_tokenizer().decode(free.tokens(row)) for row in range(12)]
    string = next(t[5:7] for t in text if len(t) > 8 and t[5:7].isascii())
    done = generate(PROMPTS, samples=4, sampling=dataclasses.replace(SAMPLING, stop=(string, "not there")))
    for row in range(12):
        tokens = free.tokens(row)
        ends = [n for n in range(1, len(tokens) + 1) if string in byte_tokenizer().decode(tokens[:n])]
        assert done.tokens(row) == (tokens[: ends[0]] if ends else tokens)
        assert done.ended_N[row] == (bool(ends) or bool(free.ended_N[row]))
    assert any(string in byte_tokenizer().decode(done.tokens(row)) for row in range(12))


def test_a_text_ends_with_its_stop_string_even_inside_a_token() -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("say STOP and go on")
    assert completion_text(tokenizer, tokens, ()) == "say STOP and go on"
    assert completion_text(tokenizer, tokens, ("on", "OP an", "STOP")) == "say STOP"
    assert completion_text(tokenizer, [*tokens, EOS], ("never",)) == "say STOP and go on"


def test_greedy_takes_the_likeliest_token_every_time() -> None:
    done = generate(PROMPTS, sampling=dataclasses.replace(SAMPLING, greedy=True))
    for row, prompt in enumerate(PROMPTS):
        tokens = done.tokens(row)
        np.testing.assert_array_equal(tokens, logits_of(prompt, tokens).argmax(axis=1))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1, 1),
        Sampling(1, 1, temperature=0.5),
        Sampling(1, 1, top_k=3),
        Sampling(1, 1, top_p=0.7),
        Sampling(1, 1, temperature=2.0, top_k=200, top_p=0.9),
        Sampling(1, 1, min_p=0.05),
        Sampling(1, 1, temperature=1.5, top_k=40, top_p=0.95, min_p=0.02),
    ],
)
def test_tokens_are_drawn_from_the_distribution_that_was_asked_for(sampling: Sampling) -> None:
    """A grid of uniform numbers is as good as all of them: frequencies are exact to the grid's step."""
    V, N = 300, 20_000
    logits_V = np.asarray(jax.random.normal(jax.random.key(0), (V,))) * 3
    probs = np.exp(logits_V / sampling.temperature)
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    kept = np.zeros(V, bool)
    kept[order[(np.cumsum(probs[order]) - probs[order] < sampling.top_p) & (np.arange(V) < (sampling.top_k or V))]] = (
        True
    )
    kept &= probs >= sampling.min_p * probs.max()
    wanted = np.where(kept, probs, 0) / probs[kept].sum()
    uniform_B = (np.arange(N) + 0.5) / N
    token_B, logp_B = choose(jnp.broadcast_to(logits_V, (N, V)), jnp.asarray(uniform_B, jnp.float32), sampling)
    np.testing.assert_allclose(np.bincount(token_B, minlength=V) / N, wanted, atol=1.5 / N)
    np.testing.assert_allclose(logp_B, np.log(probs)[np.asarray(token_B)], atol=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1, 1, top_k=1),
        Sampling(1, 1, top_p=1e-9),
        Sampling(1, 1, min_p=1.0),
        Sampling(1, 1, temperature=1e-3),
        Sampling(1, 1, temperature=100.0, top_k=1, top_p=1e-9, min_p=1.0),
        Sampling(1, 1, greedy=True),
    ],
)
def test_the_narrowest_settings_leave_the_likeliest_token(sampling: Sampling) -> None:
    logits_BV = jax.random.normal(jax.random.key(1), (64, 300)) * 5
    token_B, logp_B = choose(logits_BV, jnp.linspace(0.0, 1.0 - 2.0**-24, 64), sampling)
    np.testing.assert_array_equal(token_B, logits_BV.argmax(axis=1))
    wanted_BV = jax.nn.log_softmax(logits_BV if sampling.greedy else logits_BV / sampling.temperature)
    np.testing.assert_allclose(logp_B, wanted_BV.max(axis=1), rtol=1e-5, atol=1e-5)


def test_a_forbidden_token_never_comes_and_changes_no_log_prob() -> None:
    logits_BV = jnp.tile(jnp.array([0.0, 1.0, 5.0, 2.0]), (64, 1))
    allowed_BV = logits_BV.at[:, 2].set(-jnp.inf)
    for sampling in (Sampling(1, 1), Sampling(1, 1, top_k=2), Sampling(1, 1, greedy=True)):
        token_B, logp_B = choose(logits_BV, (jnp.arange(64) + 0.5) / 64, sampling, allowed_BV)
        wanted = {0, 1, 3} if not sampling.greedy and not sampling.top_k else {3} if sampling.greedy else {1, 3}
        assert set(np.asarray(token_B).tolist()) == wanted
        np.testing.assert_allclose(logp_B, jax.nn.log_softmax(logits_BV[0])[token_B], atol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-24])
def test_the_ends_of_the_unit_interval_never_draw_an_impossible_token(uniform: float) -> None:
    logits = jnp.full((1, 264), -jnp.inf).at[0, 130].set(2.0).at[0, 200].set(1.0)
    token, logp = choose(logits, jnp.array([uniform]), Sampling(1, 1))
    assert int(token[0]) in (130, 200)
    assert np.isfinite(logp[0])


def test_random_numbers_are_uniform_and_belong_to_their_row() -> None:
    keys = row_keys(0, 0, jnp.repeat(jnp.arange(100), 10), jnp.tile(jnp.arange(10), 100))
    numbers = np.concatenate([uniforms(keys, jnp.int32(position)) for position in range(10)])
    assert len(np.unique(numbers)) > 9_950
    counts = np.bincount((numbers * 10).astype(int), minlength=10)
    assert ((counts - 1000) ** 2 / 1000).sum() < 27.9  # chi-square, 9 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    ("tokens", "slots"), [(1, 16), (16, 16), (17, 24), (25, 32), (65, 96), (100, 128), (1000, 1024)]
)
def test_prompt_slots_come_in_few_sizes(tokens: int, slots: int) -> None:
    assert slots_for(tokens) == slots


@pytest.mark.parametrize(
    ("share", "slots", "rows"),
    [(Fraction(1), None, "all"), (Fraction(1), 4, 4), (Fraction(1, 2), None, 4), (Fraction(1, 2), 2, 2)],
)
def test_on_half_of_the_slices_no_device_samples_more_rows_than_on_all(
    share: Fraction, slots: int | None, rows: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six samples, on two devices."""
    chosen: list[int | str] = []
    monkeypatch.setattr(native_engine._Run, "all_at_once", lambda run: chosen.append("all"))
    monkeypatch.setattr(native_engine._Run, "refilled", lambda run, most: chosen.append(most))
    mesh = sharding.make_mesh((2,), jax.devices()[:2])
    model, params = model_and_params()
    engine = NativeEngine(model, byte_tokenizer(), partial(sharding.put, mesh), mesh=mesh, rows=slots, share=share)
    engine.generate_into(cast(Any, None), sharding.put(mesh, params), PROMPTS, 2, SAMPLING, Draw(7, 3))
    assert chosen == [rows]
