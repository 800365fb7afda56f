"""Speculative decoding: whatever is guessed, the samples are those of sampling token by token."""

import dataclasses
from collections import Counter
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.adapters import adapted
from tests.builders.peers.models import CASES
from tests.builders.trainer.preflight import spec

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model, Params, from_hf, preset
from pttrainer.models.decoding.block_head import BlockHead, with_block
from pttrainer.preflight.memory import resident
from pttrainer.preflight.shapes import rollout_shapes
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.speculative import build
from pttrainer.rollout.speculative.block_proposals import Block
from pttrainer.rollout.speculative.draft_model import Draft
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import ProposalRequest, Speculation, count_proposals, verify, with_rates
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put

TEXTS = (b"one", b"two and two and t", b"3")
PROMPTS = [Prompt([256, *TEXTS[n % 3]], n) for n in range(20)]
SAMPLING = Sampling(max_new_tokens=24, max_length=36, temperature=0.8)
DRAW = Draw(7, 3)
OFTEN_ENDED = dataclasses.replace(byte_tokenizer(), eos_ids=tuple(range(252, 264)))
NGRAM = Speculation(Ngram(tokens=3, longest=3))


@lru_cache
def model_and_params() -> tuple[Model, Params]:
    """One layer. A fresh model is uniform over tokens; a scaled embedding makes it say something."""
    model = Model(dataclasses.replace(preset("tiny"), layers=1))
    params = jax.jit(model.init)(jax.random.key(1))
    return model, {**params, "embedding": params["embedding"] * 8.0}


@lru_cache
def draft() -> Speculation:
    """A draft that is right about half of the time: the model with another head (and so another embedding)."""
    model, params = model_and_params()
    noise = jax.random.normal(jax.random.key(5), params["embedding"].shape)
    guess = {**params, "embedding": params["embedding"] + 0.03 * noise}
    return Speculation(Draft(3, model), jax.jit(model.for_decoding)(guess), model)


def generate(
    speculation: Speculation | None = None,
    sampling: Sampling = SAMPLING,
    rows: int | None = None,
    devices: int = 1,
    params: Params | None = None,
) -> Completions:
    model, params = model_and_params()[0], params or model_and_params()[1]
    if devices == 1:
        engine = NativeEngine(model, OFTEN_ENDED, rows=rows, speculation=speculation)
        return engine.generate(params, PROMPTS, 2, sampling, DRAW)
    mesh = sharding.make_mesh((devices,), jax.devices()[:devices])
    with jax.set_mesh(mesh):
        engine = NativeEngine(model, OFTEN_ENDED, partial(put, mesh), jax.device_get, mesh, rows, speculation)
        return engine.generate(jax.device_put(params), PROMPTS, 2, sampling, DRAW)


@lru_cache
def plain(sampling: Sampling = SAMPLING) -> Completions:
    return generate(sampling=sampling)


def assert_same(completions: Completions, wanted: Completions) -> None:
    rows = range(len(wanted.lengths_N))
    assert [completions.tokens(row) for row in rows] == [wanted.tokens(row) for row in rows]
    np.testing.assert_array_equal(completions.ended_N, wanted.ended_N)
    np.testing.assert_allclose(completions.logps_NT, wanted.logps_NT, atol=1e-5)


# What is guessed, and what of it holds


@partial(jax.jit, static_argnums=0)
def proposed(longest: int, tokens_BL: jax.Array, request: ProposalRequest) -> tuple[jax.Array, jax.Array]:
    return Ngram(4, longest).propose(lambda *_: pytest.fail("needs no draw"), None, tokens_BL, request)


def proposals(text: list[int], longest: int = 3) -> list[int]:
    """After a prompt of one token; the row's newest token comes separately, as it does in a rollout."""
    remembered = np.full((1, 20), 99)
    remembered[0, : len(text) - 1] = text[:-1]
    newest, start, count = (np.array([x]) for x in (text[-1], 1, len(text) - 1))
    no_state = np.zeros((1, 0))
    request = ProposalRequest(newest, start, count, np.array([0]), np.array([True]), no_state, {})  # type: ignore[arg-type]
    guesses_BK, written = proposed(longest, jnp.asarray(remembered), request)
    guesses: list[int] = guesses_BK[0].tolist()
    assert written[0, : len(text) + 4].tolist() == [*text, *guesses]
    return guesses


def test_the_longest_match_counts_and_of_equal_ones_the_latest() -> None:
    assert proposals([1, 2, 3, 4, 9, 3, 5, 6, 7, 8, 2, 3]) == [4, 9, 3, 5]  # 2 3, though 3 stands later
    assert proposals([7, 1, 2, 7, 3, 4, 7]) == [3, 4, 7, 3]
    assert proposals([1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3], longest=2)[0] == 8  # two tokens are compared, no more
    assert proposals([1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3], longest=3)[0] == 9


def test_what_repeats_itself_goes_on_repeating_and_what_never_was_said_is_said_again() -> None:
    assert proposals([1, 5, 6, 5, 6]) == [5, 6, 5, 6]
    assert proposals([1, 5, 5]) == [5, 5, 5, 5]
    assert proposals([1, 2, 3]) == [3, 3, 3, 3]
    assert proposals([4, 4]) == [4, 4, 4, 4]


def test_proposals_hold_up_to_the_first_that_differs_or_ends_the_row() -> None:
    choices = jnp.array([[5, 6, 7]] * 5)
    guesses = jnp.array([[5, 6, 7], [5, 0, 7], [0, 6, 7], [5, 6, 7], [5, 6, 7]])
    is_last = jnp.array([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]], bool)
    verified = verify(guesses, choices, is_last, jnp.array([True, True, True, True, False]))
    assert verified.is_accepted_BK.astype(int).tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert verified.counts_B.tolist() == [3, 1, 0, 2, 0]
    assert verified.is_ended_B.tolist() == [False, False, False, True, False]


# The samples


@pytest.mark.parametrize(("rows", "devices", "first_slots"), [(1, 1, 32), (4, 2, 16), (32, 1, 32)])
def test_with_any_number_of_slots_samples_are_those_of_sampling_token_by_token(
    rows: int, devices: int, first_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end inside a run, at the limit and in between; that are taken over, grow (4) and get fewer (32)."""
    monkeypatch.setattr("pttrainer.rollout.native.buckets.FIRST_SLOTS", first_slots)
    completions = generate(NGRAM, rows=rows, devices=devices)
    assert_same(completions, plain())
    assert {1, 24} < set(plain().lengths_N.tolist())
    assert completions.facts["speculation/accepted"] > 20


def test_a_drafts_guesses_change_no_sample_and_the_models_own_are_always_right() -> None:
    completions = generate(draft(), rows=4)
    assert_same(completions, plain())
    assert 0.1 < completions.facts["speculation/accepted"] / completions.facts["speculation/proposed"] < 0.9
    model, params = model_and_params()
    itself = dataclasses.replace(draft(), weights=jax.jit(model.for_decoding)(params))
    completions = generate(itself, rows=4)
    assert_same(completions, plain())
    assert completions.facts["speculation/passes"] == np.ceil(plain().lengths_N / 4).sum()


def block_params(params: Params) -> Params:
    """The model's weights with those of a head that is wrong most of the time."""
    head = BlockHead(3, model_and_params()[0].config.d_model)
    block = head.init(jax.random.key(0))
    noise = jax.random.normal(jax.random.key(1), block["down"].shape)
    return with_block(params, {**block, "down": 0.05 * noise})


@pytest.mark.parametrize(("rows", "devices"), [(4, 2), (None, 1)])
def test_a_heads_guesses_change_no_sample(rows: int | None, devices: int) -> None:
    model, params = model_and_params()
    completions = generate(Speculation(Block(3, model)), rows=rows, devices=devices, params=block_params(params))
    assert_same(completions, plain())
    assert completions.facts["speculation/accepted"] > 20


def test_a_new_head_guesses_by_the_state_that_the_newest_token_came_from() -> None:
    """Its correction begins at zero, so logits of all its proposals are those of that state."""
    head = BlockHead(2, 4)
    hidden_BD, head_VD = jax.random.normal(jax.random.key(0), (3, 4)), jax.random.normal(jax.random.key(1), (9, 4))
    states_BKD = head.states(head.init(jax.random.key(2)), hidden_BD, head_VD, jnp.array([8, 0, 3]))
    np.testing.assert_array_equal(states_BKD, jnp.repeat(hidden_BD[:, None], 2, axis=1))


def test_a_stop_string_ends_a_completion_inside_a_run_of_guesses() -> None:
    sampling = dataclasses.replace(SAMPLING, stop=("\ufffd\ufffd", "two"))  # two bytes that are no text
    completions, wanted = generate(NGRAM, sampling, rows=32), plain(sampling)
    assert_same(completions, wanted)
    assert (wanted.lengths_N < plain().lengths_N).sum() > 3


def test_greedy_completions_of_adapters_sliding_windows_and_a_least_length_are_the_same() -> None:
    """Unmerged LoRA weights on a family whose window is shorter than its completions; end tokens that are likely."""
    base = Model(from_hf(CASES["mistral"] | {"num_hidden_layers": 1}))
    model, params = adapted(base, jax.jit(base.init)(jax.random.key(0)), "mistral")
    assert model.config.window is not None
    assert model.config.window < 40
    tokenizer = dataclasses.replace(byte_tokenizer(), eos_ids=tuple(range(0, 107, 5)), pad_id=0)
    prompts = [Prompt([5, 9, 17, 3, 5, 9], 0), Prompt([77, 2], 1), Prompt([50, 51], 2), Prompt([6] * 9, 3)]

    def sampled(speculation: Speculation | None) -> Completions:
        engine = NativeEngine(model, tokenizer, speculation=speculation)
        return engine.generate(params, prompts, 1, Sampling(40, 64, greedy=True, min_new_tokens=21), DRAW)

    completions = sampled(Speculation(Ngram(3, 2)))
    assert_same(completions, sampled(None))
    assert completions.lengths_N.min() >= 21
    assert completions.ended_N.any()
    assert completions.facts["speculation/accepted"] > 10


SMALL = Model(dataclasses.replace(preset("tiny"), vocab_size=6, d_model=16, layers=1, heads=2, kv_heads=1, d_ff=16))
SMALL_PROMPT, SMALL_END = [0, 2, 0, 2, 1], 5


SMALL_INIT = jax.jit(SMALL.init)


@lru_cache
def small_params(seed: int) -> Params:
    params = SMALL_INIT(jax.random.key(seed))
    return {**params, "embedding": params["embedding"] * 12.0}


@lru_cache
def exact() -> dict[tuple[int, ...], float]:
    """The probability of every completion of up to three tokens, at temperature 1.3, by the training forward."""
    V = SMALL.config.vocab_size
    tokens_BT = jnp.array([[*SMALL_PROMPT, a, b] for a in range(V) for b in range(V)])

    @jax.jit
    def probabilities(params: Params) -> jax.Array:
        positions_BT = jnp.broadcast_to(jnp.arange(7), tokens_BT.shape)
        hidden = SMALL.forward(params, tokens_BT, positions_BT, jnp.ones_like(tokens_BT))
        return jax.nn.softmax(SMALL.logits(params, hidden)[:, 4:] / 1.3, axis=-1)

    shares: dict[tuple[int, ...], float] = {}
    for tokens_T, probs_TV in zip(tokens_BT.tolist(), np.asarray(probabilities(small_params(0)), float), strict=True):
        a, b = tokens_T[5:]
        p1, p2 = probs_TV[0, a], probs_TV[1, b]
        if SMALL_END in (a, b):
            shares |= {(a,): p1} if a == SMALL_END else {(a, b): p1 * p2}
        else:
            shares |= {(a, b, c): p1 * p2 * probs_TV[2, c] for c in range(V)}
    assert sum(shares.values()) == pytest.approx(1.0)
    return shares


@pytest.mark.parametrize("guess", ["ngram", "draft"])
def test_completions_are_drawn_from_the_models_distribution(guess: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By chi-square against the exact probabilities of a vocabulary of six."""
    monkeypatch.setattr("pttrainer.rollout.native.buckets.FEWEST_ROWS", 10**6)
    N = 1500
    how = Speculation(Ngram(2, 2))
    if guess == "draft":
        how = Speculation(Draft(2, SMALL), SMALL.for_decoding(small_params(1)), SMALL)
    tokenizer = dataclasses.replace(byte_tokenizer(), eos_ids=(SMALL_END,), pad_id=0)
    engine = NativeEngine(SMALL, tokenizer, rows=N, speculation=how)
    sampling = Sampling(3, 16, temperature=1.3)
    done = engine.generate(small_params(0), [Prompt(SMALL_PROMPT, 0)], N, sampling, DRAW)
    counts = Counter(tuple(done.tokens(row)) for row in range(N))
    assert set(counts) <= set(exact())
    observed, expected = np.array([counts[text] for text in exact()]), N * np.array(list(exact().values()))
    is_rare = expected < 5
    observed, expected = (np.append(x[~is_rare], x[is_rare].sum()) for x in (observed, expected))
    freedom = len(observed) - 1
    assert freedom > 30
    assert 0.1 < done.facts["speculation/accepted"] / done.facts["speculation/proposed"] < 0.9
    # A chi-square of many degrees of freedom is about normal: p = 0.001.
    assert ((observed - expected) ** 2 / expected).sum() < freedom + 3.1 * np.sqrt(2 * freedom)


# What is logged, and what it costs


def test_figures_are_of_all_passes_and_stay_so_when_draws_are_added() -> None:
    # Two passes of three lines (two guesses): both rows, then the first alone.
    is_sampled_TB = np.array([[1, 1], [1, 0], [1, 0], [1, 0], [0, 0], [0, 0]], bool)
    counts = count_proposals(is_sampled_TB, 2)
    assert counts == {"speculation/passes": 3, "speculation/proposed": 6, "speculation/accepted": 2}
    facts = with_rates(counts)
    assert facts["speculation/accepted_share"] == pytest.approx(1 / 3)
    assert facts["speculation/tokens_per_pass"] == pytest.approx(5 / 3)
    none = {"speculation/passes": 5, "speculation/proposed": 10, "speculation/accepted": 0}
    both = Rollout(0, [], facts).with_more([], Rollout(0, [], with_rates(none))).facts
    assert both["speculation/accepted_share"] == pytest.approx(2 / 16)
    assert both["speculation/tokens_per_pass"] == pytest.approx(10 / 8)
    assert with_rates({"seconds/reward": 1.0}) == {"seconds/reward": 1.0}


def test_a_job_names_its_draft_and_one_with_too_few_tokens_is_refused() -> None:
    job = spec("tiny", "cpu-1", rollout={"speculative": {"draft": {"uri": "random://demo", "tokens": 2}}})
    notes: list[str] = []
    mesh = sharding.make_mesh((1,), jax.devices()[:1])
    context = SimpleNamespace(
        spec=job, model=Model(preset("tiny")), mesh=mesh, tokenizer=byte_tokenizer(), note=notes.append
    )
    made = build.speculation(cast(Context, context), mesh)
    assert made.draft is not None
    assert isinstance(made.proposer, Draft)
    assert (made.proposer.tokens, made.draft.config) == (2, preset("demo"))
    assert len(cast(Any, made.weights)["layers"]) == preset("demo").layers
    assert notes[0].startswith("draft: random://demo, ")
    assert rollout_shapes.ahead(job) == 2
    context.tokenizer = SimpleNamespace(size=265)
    with pytest.raises(ConfigError, match=r"speculative\.draft\.uri: random://demo: has 264 tokens, but .* 265"):
        build.speculation(cast(Context, context), mesh)


def test_preflight_counts_a_drafts_weights_and_cache() -> None:
    fields: dict[str, Any] = {"algorithm": "grpo", "batchSize": 64, "sequenceLength": 4096}
    base = {"maxNewTokens": 2044}

    def buffers(rollout: dict[str, Any]) -> dict[str, int]:
        of = shapes_of(spec("llama3.1-8b", "v6e-16", rollout=base | rollout, **fields))
        return {buffer.name: buffer.bytes for buffer in resident.resident_buffers(of)}

    alone = buffers({})
    drafted = buffers({"speculative": {"draft": {"uri": "random://llama3.2-1b"}}})
    # bfloat16, in two halves: so the 8B model's 16 GB are sampled on chips of 31 GiB.
    assert drafted["draft weights"] == pytest.approx(1_235_814_400, rel=1e-3)
    # 8 rows of 2,048 slots on two chips, and one prompt in 3,072: 16 layers, 8 heads of 64, keys and values, 2 bytes.
    assert drafted["cache of the draft"] == (8 * 2048 + 3072) * 16 * 8 * 64 * 2 * 2 / 2
    assert drafted["cache of keys and values"] == alone["cache of keys and values"]
    ngram = buffers({"speculative": {"ngram": {}}})
    assert "draft weights" not in ngram
    assert ngram["cache of keys and values"] == alone["cache of keys and values"]
