"""Prompts by pages that later calls use: the samples are those of an engine that forgets them."""

import dataclasses
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.peers.models import CASES

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, ModelConfig, Params, from_hf, preset
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.buckets import PAGE
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.native.prefix_reuse.kept_prompts import REUSED_TOKENS, with_reused_share
from pttrainer.rollout.native.prefix_reuse.page_index import PageIndex, names_of
from pttrainer.rollout.speculative.draft_model import Draft
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import Speculation
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put

VOCABULARY = 264
SAMPLING = Sampling(max_new_tokens=24, max_length=320)
TOKENIZER = dataclasses.replace(byte_tokenizer(), eos_ids=tuple(range(250, VOCABULARY)))
SYSTEM = np.random.default_rng(1).integers(0, 250, 2 * PAGE + 20).tolist()
"""The beginning of all episodes."""
OBSERVED = np.random.default_rng(2).integers(0, 250, (3, 4, 30)).tolist()
"""What is observed after each turn, by episode."""


def config_of(name: str) -> ModelConfig:
    if name == "tiny":
        return dataclasses.replace(preset("tiny"), layers=1)
    return dataclasses.replace(from_hf(CASES[name]), vocab_size=VOCABULARY)


@cache
def model_and_params(name: str = "tiny", seed: int = 1) -> tuple[Model, Params]:
    model = Model(config_of(name))
    params = jax.jit(model.init)(jax.random.key(seed))
    return model, {**params, "embedding": params["embedding"] * 8.0}


def engine_of(model: Model, rows: int | None = None, speculation: Speculation | None = None) -> NativeEngine:
    return NativeEngine(model, TOKENIZER, rows=rows, speculation=speculation, keeps_prompts=True)


def conversations(
    engine: NativeEngine, params: Params, *, turns: int = 3, samples: int = 1, forgets: bool = False
) -> list[Completions]:
    """Four episodes of several turns, as `EpisodeSampler` samples them."""
    texts = [[*SYSTEM, *b"episode", n] for n in range(4)]
    sampled = []
    for turn in range(turns):
        prompts = [Prompt(text, number) for number, text in enumerate(texts)]
        sampled.append(engine.generate(params, prompts, samples, SAMPLING, Draw(7, turn)))
        texts = [text + sampled[-1].tokens(n * samples) + OBSERVED[turn][n] for n, text in enumerate(texts)]
        if forgets:
            engine.forget()
    return sampled


def assert_same_bits(ours: Sequence[Completions], wanted: Sequence[Completions]) -> None:
    for turn, (one, other) in enumerate(zip(ours, wanted, strict=True)):
        for name in ("tokens_NT", "logps_NT", "lengths_N", "ended_N"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), f"{name} of turn {turn}")


def reused(completions: Completions) -> float:
    return with_reused_share(completions.facts)["prompt_tokens/reused_share"]


@pytest.mark.parametrize(
    "name",
    [
        "gpt-oss",  # sliding windows and sinks
        "deepseek-v3",  # latent attention
        "gemma-4-small",  # layers that read those of others
        "qwen-3-next",  # states of a delta rule
    ],
)
def test_what_is_kept_changes_no_bit_of_any_architecture(name: str) -> None:
    model, params = model_and_params(name)
    kept, fresh = (conversations(engine_of(model), params, turns=2, forgets=forgets) for forgets in (False, True))
    assert_same_bits(kept, fresh)
    assert kept[1].facts[REUSED_TOKENS] > fresh[1].facts[REUSED_TOKENS] == fresh[0].facts[REUSED_TOKENS]


def test_turns_of_episodes_and_common_beginnings_are_computed_once() -> None:
    model, params = model_and_params()
    done = conversations(engine_of(model), params)
    assert done[0].facts[REUSED_TOKENS] == 3 * 2 * PAGE  # of the second to the fourth episode
    assert done[1].facts[REUSED_TOKENS] == 4 * 2 * PAGE
    assert reused(done[1]) > 0.6
    assert done[2].facts[REUSED_TOKENS] > 4 * 2 * PAGE


def test_prompts_in_pages_say_what_prompts_computed_whole_say() -> None:
    model, params = model_and_params()
    by_pages = conversations(engine_of(model), params, samples=2)
    whole = conversations(NativeEngine(model, TOKENIZER), params, samples=2)
    for ours, wanted in zip(by_pages, whole, strict=True):
        np.testing.assert_array_equal(ours.tokens_NT, wanted.tokens_NT)
        np.testing.assert_allclose(ours.logps_NT, wanted.logps_NT, atol=1e-5)


@pytest.mark.parametrize("proposer", ["ngram", "draft"])
def test_guessed_tokens_are_the_same_bits_after_kept_prompts(proposer: str) -> None:
    model, params = model_and_params()
    how = Speculation(Ngram(tokens=3, longest=3))
    if proposer == "draft":
        how = Speculation(Draft(3, model), jax.jit(model.for_decoding)(params), model)
    kept, fresh = (
        conversations(engine_of(model, speculation=how), params, turns=2, forgets=forgets) for forgets in (False, True)
    )
    assert_same_bits(kept, fresh)
    assert reused(kept[1]) > 0.6


def test_rows_that_are_taken_over_begin_with_kept_prompts() -> None:
    model, params = model_and_params()
    kept, fresh = (conversations(engine_of(model, rows=2), params, turns=2, forgets=on) for on in (False, True))
    assert_same_bits(kept, fresh)
    assert reused(kept[1]) > 0.6


@pytest.mark.parametrize("pages", [5, 8])
def test_a_store_of_few_pages_makes_room_and_changes_no_bit(pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five: one prompt at a time. Eight: some episodes are kept, others are not."""
    model, params = model_and_params()
    wanted = conversations(engine_of(model), params)
    monkeypatch.setattr("pttrainer.rollout.native.sizes.max_rows.KEPT_BYTES", pages * buckets.page_bytes(model))
    assert_same_bits(conversations(engine_of(model), params), wanted)


def test_a_prompt_that_outgrows_the_memory_for_pages_is_computed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model, params = model_and_params()
    monkeypatch.setattr("pttrainer.rollout.native.sizes.max_rows.KEPT_BYTES", 4 * buckets.page_bytes(model))
    (done,) = conversations(engine_of(model), params, turns=1)
    assert with_reused_share(done.facts) == {}
    assert done.lengths_N.all()


def test_new_weights_find_no_page_of_the_old_ones() -> None:
    model, params = model_and_params()
    other = model_and_params(seed=2)[1]
    engine = engine_of(model)
    conversations(engine, params, turns=1)
    assert_same_bits(conversations(engine, other), conversations(engine_of(model), other))
    one_changed = {**other, "norm": jax.tree.map(lambda scale: 2.0 * scale, other["norm"])}
    assert_same_bits(conversations(engine, one_changed, turns=1), conversations(engine_of(model), one_changed, turns=1))


def test_a_program_that_fails_leaves_no_page_that_was_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, params = model_and_params()
    engine = engine_of(model)
    functions = engine.compiled(SAMPLING)
    works = functions["copy_pages"]
    monkeypatch.setitem(functions, "copy_pages", lambda *_: pytest.fail("out of memory"))
    with pytest.raises(pytest.fail.Exception):
        conversations(engine, params, turns=1)
    monkeypatch.setitem(functions, "copy_pages", works)
    assert_same_bits(conversations(engine, params), conversations(engine_of(model), params))


@pytest.mark.parametrize("shape", [(2,), (1, 2, 2)])
def test_devices_that_share_out_pages_and_key_heads_say_what_one_says(shape: tuple[int, ...]) -> None:
    model, params = model_and_params()
    wanted = conversations(engine_of(model), params, turns=2)
    mesh = sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    with jax.set_mesh(mesh):
        weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
        engine = NativeEngine(model, TOKENIZER, partial(put, mesh), jax.device_get, mesh, keeps_prompts=True)
        done = conversations(engine, jax.device_put(params, weights), turns=2)
    for ours, one in zip(done, wanted, strict=True):
        np.testing.assert_array_equal(ours.tokens_NT, one.tokens_NT)
        np.testing.assert_allclose(ours.logps_NT, one.logps_NT, atol=1e-5)
    assert reused(done[1]) > 0.6


# The index of pages


def placed(index: PageIndex, tokens: Sequence[int], in_use: set[int] | None = None) -> Any:
    return index.place(len(tokens), names_of(tokens), set() if in_use is None else in_use)


def test_a_page_is_named_by_all_tokens_up_to_its_end() -> None:
    first, second = names_of([0] * 2 * PAGE)
    assert first != second
    assert names_of([0] * PAGE + [1]) != [first, second]
    assert names_of([0] * PAGE + [1])[0] == first
    assert names_of([1] + [0] * (2 * PAGE - 1))[1] != second


def test_the_page_used_least_recently_makes_room_the_end_of_a_prompt_before_its_beginning() -> None:
    index = PageIndex(4)
    old, new, newest = [1] * 2 * PAGE, [2] * 2 * PAGE, [3] * PAGE
    placed(index, old)
    placed(index, new)
    placed(index, old)
    placed(index, newest)
    assert [index.kept(names_of(each)) for each in (old, new, newest)] == [2, 1, 1]


def test_pages_in_use_stay_and_a_prompt_that_finds_too_few_changes_nothing() -> None:
    index, in_use = PageIndex(3), set[int]()
    assert placed(index, [1] * 2 * PAGE, in_use).first_new == 0
    assert placed(index, [2] * 2 * PAGE, in_use) is None
    assert index.kept(names_of([2] * 2 * PAGE)) == 0
    assert placed(index, [1] * 2 * PAGE, in_use).first_new == 2
    assert len(placed(index, [3] * PAGE, in_use).pages) == len(in_use) - 2 == 1


def test_a_page_that_is_not_full_makes_room_first() -> None:
    index = PageIndex(3)
    placed(index, [1] * PAGE)
    placed(index, [2] * (PAGE + 1))
    placed(index, [3] * PAGE)
    assert [index.kept(names_of(tokens)) for tokens in ([1] * PAGE, [2] * (PAGE + 1), [3] * PAGE)] == [1, 1, 1]
