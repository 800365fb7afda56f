"""Samples that outlive a weight update in samplers with pods of their own: what is asked, added, and counted."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from tests.builders.trainer import specs
from tests.unit.pttrainer.rollout.test_in_flight import QUESTIONS, SAMPLING, SEED, Scored, engine

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Params
from pttrainer.rollout.disaggregated.in_flight import remote_calls
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continuation, Continued
from pttrainer.rollout.disaggregated.in_flight.stream import InFlightStream
from pttrainer.rollout.disaggregated.in_flight.unfinished import Goal, PartialSample, UnfinishedGroup
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.held_weights import HeldWeights
from pttrainer.rollout.disaggregated.separate.messages import MessageError
from pttrainer.rollout.disaggregated.separate.prefix_routing import PrefixRouting
from pttrainer.rollout.disaggregated.separate.remote_engine import RemoteEngine, versions_in_use
from pttrainer.rollout.disaggregated.separate.sampler_group.work import Progress, SamplerWork, TrainerGone
from pttrainer.rollout.engine import SamplerWeights, Sampling

P, G = 6, 2


class Named(NamedTuple):
    """A version of the weights. number: the optimizer steps that made them."""

    number: int

    @property
    def name(self) -> str:
        return f"v{self.number}"


def over_the_wire(call: Continuation) -> Continuation:
    """Return the call as a sampler reads it."""
    return remote_calls.decode_request(messages.decode(b"".join(remote_calls.encode_request(call))))


def back(reply: Continued) -> Continued:
    """Return the reply as the trainer reads it."""
    return remote_calls.decode_reply(messages.decode(b"".join(remote_calls.encode_reply(reply))))


class Pods:
    """Samplers without a network. go_on: what one does with a call and a version."""

    def __init__(self, go_on: Callable[[Continuation, Named], Continued]) -> None:
        self._go_on = go_on
        self.calls: list[dict[int, Continuation]] = []

    def draw(self, version: Any, shares: Any, alive: Callable[[], None]) -> dict[int, Any]:
        self.calls.append(shares)
        alive()
        return {home: back(self._go_on(over_the_wire(call), version)) for home, call in shares.items()}


def length(number: int, g: int) -> int:
    """How many tokens a sample of the counting samplers has: most few, some many."""
    return 1 + (number * 7 + g * 3) % 5 + (40 if (number + g) % 5 == 0 else 0)


def counting(call: Continuation, version: Named) -> Continued:
    """Sample token t as t, two at a time in every sample, until the call's goal is reached."""
    before = [len(sample.tokens) for group in call.groups for sample in group.samples]
    while not call.goal.is_reached(call.groups):
        for group in call.groups:
            for g, sample in enumerate(group.samples):
                for _ in range(2):
                    if len(sample.tokens) < length(group.number, g):
                        sample.tokens.append(len(sample.tokens))
                        sample.logps.append(-float(version.number))
                sample.is_complete = sample.ended = len(sample.tokens) == length(group.number, g)
    return remote_calls.added(call.groups, before)


def stream(pods: Any, samplers: int, prompts: int, bound: int, sampling: Sampling = SAMPLING) -> InFlightStream:
    """The stream of a run with so many samplers."""
    routing = PrefixRouting(samplers, keeps_prompts=False)
    scored = Scored()
    scored.engine = cast(Any, RemoteEngine(pods, cast(Any, None), routing, lambda: None))
    return InFlightStream(QUESTIONS, scored, sampling, SEED, prompts, G, bound=bound, updates=1)


@pytest.mark.parametrize("samplers", [1, 2, 5, 20])
def test_every_token_is_counted_once_whichever_sampler_drew_it_and_none_is_too_old(samplers: int) -> None:
    pods = Pods(counting)
    of = stream(pods, samplers, P, bound=3)
    versions = [max(0, step - 1) for step in range(9)]  # sampled one batch ahead
    drawn = [of.draw(step, SamplerWeights({"version": Named(v)}, v)) for step, v in enumerate(versions)]
    numbers = [[call.groups for call in shares.values()] for shares in pods.calls]
    for of_call in numbers:
        flat = [group.number for groups in of_call for group in groups]
        assert len(set(flat)) == len(flat)
    old = 0
    for step, one in enumerate(drawn):
        assert len(one.groups) == P
        assert one.facts["staleness/max"] <= 3
        assert one.facts["staleness/dropped"] == 0
        for sample in one.samples:
            assert list(sample.tokens) == list(range(len(sample.tokens)))
            np.testing.assert_array_equal(sample.logps, [-float(version) for version in sample.versions])
            old += sample.versions[0] < versions[step]
    assert old
    lengths = sorted(len(sample.tokens) for one in drawn for sample in one.samples)
    left = sorted(group.number for group in of._groups)
    done = set(range(of.drawn)) - set(left)
    assert lengths == sorted(length(number, g) for number in done for g in range(G))


def test_a_run_that_is_resumed_asks_and_draws_the_same() -> None:
    pods, again = Pods(counting), Pods(counting)
    whole = stream(pods, 3, P, bound=3)
    [whole.draw(step, SamplerWeights({"version": Named(step)}, step)) for step in range(3)]
    resumed = stream(again, 3, P, bound=3)
    resumed.restore(json.loads(json.dumps(whole.state())))
    before = len(pods.calls)
    for step in range(3, 6):
        of_step = SamplerWeights({"version": Named(step)}, step)
        mine, theirs = whole.draw(step, of_step), resumed.draw(step, of_step)
        assert [list(sample.versions) for sample in theirs.samples] == [
            list(sample.versions) for sample in mine.samples
        ]
    calls = [[over_the_wire(call) for call in shares.values()] for shares in pods.calls[before:]]
    assert calls == [[over_the_wire(call) for call in shares.values()] for shares in again.calls]


def group(number: int, *samples: PartialSample) -> UnfinishedGroup:
    return UnfinishedGroup(number, QUESTIONS[number % len(QUESTIONS)], list(samples))


CALL = Continuation(
    "v3",
    [
        group(4, PartialSample([5, 6], [-0.1, -0.3], [0, 0]), PartialSample()),
        group(9, PartialSample([], [], [], True, True), PartialSample([7], [-2.5], [0], False, True)),
    ],
    Sampling(max_new_tokens=8, max_length=20, stop=("x",)),
    SEED,
    Goal(1, frozenset({9})),
    2,
)


def test_a_call_and_its_answer_arrive_as_they_were_and_damaged_ones_are_refused() -> None:
    arrived = over_the_wire(CALL)
    assert arrived._replace(groups=[]) == CALL._replace(groups=[])
    for mine, theirs in zip(CALL.groups, arrived.groups, strict=True):
        assert (theirs.number, list(theirs.question.tokens)) == (mine.number, list(mine.question.tokens))
        for sample, other in zip(mine.samples, theirs.samples, strict=True):
            assert (other.tokens, other.versions, other.ended) == (sample.tokens, sample.versions, sample.ended)
            assert other.is_complete == sample.is_complete
            assert np.float32(other.logps).tobytes() == np.float32(sample.logps).tobytes()
    whole = messages.decode(b"".join(remote_calls.encode_request(CALL)))
    for damaged in (whole._replace(arrays=whole.arrays[1:]), whole._replace(head={})):
        with pytest.raises(MessageError, match="is no request"):
            remote_calls.decode_request(damaged)
    with pytest.raises(MessageError, match="is no reply"):
        remote_calls.decode_reply(whole)


def test_a_call_that_nobody_waits_for_ends_at_the_next_tokens() -> None:
    work = SamplerWork(engine(), byte_tokenizer(), cast(HeldWeights, None))
    progress = Progress()
    progress.is_cancelled = True
    params: Params = {}
    with pytest.raises(TrainerGone):
        work.go_on(CALL, params, progress)
    work.close()


def test_samples_are_one_batch_ahead_with_one_version_at_a_time_however_old_they_may_be() -> None:
    rollout = {"placement": "separate", "separate": {"replicas": 2}, "max_staleness": 8, "in_flight_updates": True}
    spec = specs.tiny({"grpo": {"updates_per_batch": 2}}, rollout=rollout)
    assert spec.rollout.steps_ahead(2) == 2
    assert versions_in_use(spec) == 1
