"""Samples that outlive a weight update: their keys, their log-probs, their age, and what a checkpoint keeps of them."""

import dataclasses
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, preset
from pttrainer.rollout import groups
from pttrainer.rollout.disaggregated.in_flight import remote_calls, unfinished
from pttrainer.rollout.disaggregated.in_flight.stream import InFlightStream
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.held_weights import HeldWeights
from pttrainer.rollout.disaggregated.separate.prefix_routing import PrefixRouting
from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine
from pttrainer.rollout.disaggregated.separate.sampler_group.work import Progress, SamplerWork
from pttrainer.rollout.engine import Completions, Draw, Prompt, SamplerWeights, Sampling
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.sampler import Sampler

P, G, SEED = 3, 2, 5
SAMPLING = Sampling(max_new_tokens=32, max_length=60)
QUESTIONS = [Question([256, *f"{i * 37 % 11}?".encode()], f"{i}", {}) for i in range(7)]


class Scored(Sampler):
    """Gives every completion the reward 0; keeps what it was given."""

    def __init__(self) -> None:
        self.engine = engine()
        self.numbers: list[list[int]] = []

    def scored(
        self, questions: Sequence[Question], images: Any, completions: Completions, stop: Any, step: int, started: float
    ) -> Rollout:
        texts = [""] * len(completions.tokens_NT)
        zeros = np.zeros(len(texts))
        scores = type("Scores", (), {"rewards": {"none": zeros}, "total": zeros})
        of_rows = groups.samples_of(completions, texts, scores)
        return Rollout(step, groups.grouped(questions, of_rows, G, images), {"seconds/generate": 1.0})


@lru_cache
def engine() -> NativeEngine:
    """One whose answers end with one of many tokens: their lengths have a long tail, and some reach the limit."""
    tokenizer = dataclasses.replace(byte_tokenizer(), eos_ids=(257, *range(200, 225)))
    return NativeEngine(Model(preset("tiny")), tokenizer)


@lru_cache
def weights(version: int) -> Params:
    """Weights that differ from version to version."""
    params = jax.jit(Model(preset("tiny")).init)(jax.random.key(1))
    scaled = jnp.asarray(params["embedding"]) * 2.0
    change = 0.1 * version * jnp.sin(jnp.arange(scaled.size, dtype=jnp.float32).reshape(scaled.shape))
    return {**params, "embedding": scaled + change}


def stream(bound: int = 2, sampling: Sampling = SAMPLING) -> InFlightStream:
    return InFlightStream(QUESTIONS, Scored(), sampling, SEED, P, G, bound=bound, updates=1)


def draws(of: InFlightStream, first: int, last: int, *, is_constant: bool = False) -> list[Rollout]:
    """Batches first … last − 1, each with the weights of its own step."""
    return [of.draw(step, SamplerWeights(weights(0 if is_constant else step), step)) for step in range(first, last)]


@lru_cache
def five() -> list[Rollout]:
    return draws(stream(), 0, 5)


@lru_cache
def logps(version: int, ids: tuple[int, ...]) -> np.ndarray:
    """The training forward's log-prob of each token after the first, [T - 1]."""
    return np.asarray(forward(weights(version), jnp.array([*ids, *[0] * (64 - len(ids))])))[: len(ids) - 1]


@jax.jit
def forward(params: Params, tokens_T: jax.Array) -> jax.Array:
    model = engine()._model
    row = tokens_T[None]
    hidden = model.forward(params, row, jnp.arange(row.shape[1])[None], jnp.ones_like(row))
    logps_TV = jax.nn.log_softmax((hidden @ model.head(params).T)[0])
    return jnp.take_along_axis(logps_TV[:-1], tokens_T[1:, None], axis=1)[:, 0]


def test_every_token_has_the_log_prob_of_the_weights_that_drew_it() -> None:
    several = 0
    for drawn in five():
        for group in drawn.groups:
            prompt = group.question.tokens
            for sample in group.samples:
                assert len(sample.versions) == len(sample.tokens)
                assert list(sample.versions) == sorted(sample.versions)
                ids = (*prompt, *sample.tokens)
                of_versions = {v: logps(v, ids)[len(prompt) - 1 :] for v in set(sample.versions)}
                wanted = [of_versions[version][at] for at, version in enumerate(sample.versions)]
                np.testing.assert_allclose(sample.logps, wanted, atol=3e-5)
                several += len(of_versions) > 1
    assert several >= 3  # else nothing was in flight


def test_weights_that_do_not_change_draw_the_samples_of_a_call_that_is_not_interrupted() -> None:
    of = stream(bound=3)
    drawn = [group for one in draws(of, 0, 4, is_constant=True) for group in one.groups]
    prompts = [Prompt(QUESTIONS[of._order[number]].tokens, number) for number in range(of.drawn)]
    whole = engine().generate(weights(0), prompts, G, SAMPLING, Draw(SEED, 0))
    wanted = [[list(prompts[row // G].tokens), whole.tokens(row)] for row in range(of.drawn * G)]
    sampled = [[list(group.question.tokens), sample.tokens] for group in drawn for sample in group.samples]
    assert len(sampled) == 4 * P * G
    assert all(one in wanted for one in sampled)
    assert any(len(set(sample.versions)) > 1 for group in drawn for sample in group.samples)


def test_every_prompt_makes_one_group_and_no_token_is_older_than_the_bound() -> None:
    for bound in (1, 2):
        of = stream(bound)
        drawn = draws(of, 0, 6)
        assert all(len(one.groups) == P for one in drawn)
        assert of.drawn == 6 * P + P  # a batch's groups are left in flight
        assert all(one.facts["staleness/max"] <= bound and one.facts["staleness/dropped"] == 0 for one in drawn)
        ages = [step - v for step, one in enumerate(drawn) for s in one.samples for v in s.versions]
        assert max(ages) == bound  # and it is reached
        assert min(ages) == 0


def test_a_stream_that_is_restored_draws_the_same_bits() -> None:
    begun = stream()
    draws(begun, 0, 3)
    again = stream()
    again.restore(json.loads(json.dumps(begun.state())))
    for one, other in zip(five()[3:], draws(again, 3, 5), strict=True):
        assert one.facts.items() - other.facts.items() == set()
        for mine, theirs in zip(one.samples, other.samples, strict=True):
            assert mine.tokens == theirs.tokens
            assert mine.versions == theirs.versions
            assert np.asarray(mine.logps, np.float32).tobytes() == np.asarray(theirs.logps, np.float32).tobytes()


class OnePod:
    """A sampler with a pod of its own, without a network. Its versions are numbers."""

    def __init__(self) -> None:
        self.work = SamplerWork(engine(), byte_tokenizer(), cast(HeldWeights, None))

    def draw(self, version: Any, shares: Any, alive: Any) -> dict[int, Any]:
        [(home, call)] = shares.items()
        read = remote_calls.decode_request(messages.decode(b"".join(remote_calls.encode_request(call))))
        progress = Progress()
        parts = self.work.go_on(read, weights(int(version.name)), progress)
        assert progress.count > 1
        return {home: remote_calls.decode_reply(messages.decode(b"".join(parts)))}


class Named(NamedTuple):
    """A version by its name."""

    name: str


def test_one_sampler_with_a_pod_of_its_own_draws_what_the_trainers_rows_would_to_the_bit() -> None:
    pod = OnePod()
    of = stream()
    of._engine = RemoteEngine(pod, cast(Any, None), PrefixRouting(1, keeps_prompts=False), lambda: None)
    drawn = [of.draw(step, SamplerWeights({"version": Named(str(step))}, step)) for step in range(5)]
    pod.work.close()
    for one, wanted in zip(drawn, five(), strict=True):
        assert one.facts == wanted.facts
        for mine, theirs in zip(one.samples, wanted.samples, strict=True):
            assert (mine.tokens, mine.versions, mine.ended) == (theirs.tokens, theirs.versions, theirs.ended)
            assert np.float32(mine.logps).tobytes() == np.float32(theirs.logps).tobytes()


def test_samples_that_are_too_old_for_a_smaller_bound_are_begun_anew_and_counted() -> None:
    begun = stream(bound=3)
    draws(begun, 0, 2)
    state = begun.state()
    again = stream(bound=1)
    again.restore(state)
    left = [group for group in again._groups if group.oldest is not None and 3 - group.oldest > 1]
    assert left
    [drawn] = draws(again, 3, 4)
    assert drawn.facts["staleness/dropped"] == sum(bool(s.tokens) for group in left for s in group.samples)
    assert drawn.facts["staleness/max"] <= 1


def test_stop_strings_end_samples_whose_beginning_is_of_older_weights() -> None:
    stop = ("x", "7", "a", "b", "c", "d", "e", "1", "2", "3")
    of = stream(sampling=dataclasses.replace(SAMPLING, stop=stop))
    tokenizer = byte_tokenizer()
    stopped = 0
    for one in draws(of, 0, 3):
        for sample in one.samples:
            text = tokenizer.decode(sample.tokens)
            assert not any(string in tokenizer.decode(sample.tokens[:-1]) for string in stop)
            if any(string in text for string in stop):
                stopped += 1
                assert sample.ended
    assert stopped


def test_the_ages_of_tokens_are_counted_by_steps_and_by_sample() -> None:
    facts = unfinished.age_facts([[3, 3, 4, 5], [5, 5]], step=5)
    assert facts == {
        "": pytest.approx((2 + 2 + 1) / 6), "/max": 2.0, "/versions": 2.0, "/versions/max": 3.0,
        "/share/0": 0.5, "/share/1": pytest.approx(1 / 6), "/share/2": pytest.approx(1 / 3),
    }  # fmt: skip


def test_the_sample_table_says_which_weights_drew_how_many_tokens() -> None:
    [group, *_] = five()[-1].groups
    rows = groups.table(5, [group], np.zeros((1, G)))
    for row, sample in zip(rows, group.samples, strict=True):
        assert sum(count for _, count in row["versions"]) == len(sample.tokens)
        assert [version for version, _ in row["versions"]] == sorted(set(sample.versions))


def test_a_group_is_the_same_after_a_checkpoint() -> None:
    samples = [
        unfinished.PartialSample([1, 2], [-0.1, -0.25], [0, 1]),
        unfinished.PartialSample([], [], [], True, True),
    ]
    group = unfinished.UnfinishedGroup(9, QUESTIONS[0], samples)
    back = unfinished.from_json(json.loads(json.dumps(unfinished.to_json(group))), QUESTIONS[0])
    assert back.samples[0].tokens == [1, 2]
    assert np.float32(back.samples[0].logps).tobytes() == np.float32(samples[0].logps).tobytes()
    assert back.samples[1] == samples[1]
    assert cast(int, back.number) == 9
