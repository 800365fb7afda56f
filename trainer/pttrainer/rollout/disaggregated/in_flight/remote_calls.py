"""Rows that go on in a sampler's pod: what it is asked, what it answers, and which sampler goes on with which groups.

The trainer keeps every sample. A call gives a sampler its groups with all tokens so far, and the sampler answers with
the tokens that it added. So a sampler that is lost takes the tokens of one call with it and no others, and whoever
makes the same call in its place draws the same ones.

Of P groups that are to be complete, a sampler with a share of the groups in progress ends with the same share of P,
rounded up, and with those of its groups that are due: each knows by itself when it is done. Left out: keys and values
of rows, which are computed anew with other weights anyway (`rows`).

Letters: S samples of a call, T tokens of all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pttrainer.data.prompts import Question
from pttrainer.rollout.disaggregated.in_flight.unfinished import Goal, PartialSample, UnfinishedGroup
from pttrainer.rollout.disaggregated.separate import messages
from pttrainer.rollout.disaggregated.separate.messages import Message, MessageError
from pttrainer.rollout.engine import Sampling


class Continuation(NamedTuple):
    """A call of `rows.go_on`, with the name of the weights. at_once: groups whose samples have rows at a time."""

    version: str
    groups: Sequence[UnfinishedGroup]
    sampling: Sampling
    seed: int
    goal: Goal
    at_once: int

    @property
    def prompts(self) -> Sequence[UnfinishedGroup]:
        """Return what a call of any kind has one of for each prompt."""
        return self.groups


class Continued(NamedTuple):
    """What was added to each sample: the number of tokens, their ids and log-probs; whether the sample is complete."""

    lengths_S: np.ndarray
    tokens_T: np.ndarray
    logps_T: np.ndarray
    ended_S: np.ndarray
    complete_S: np.ndarray


def share_of(goal: Goal, groups: Sequence[UnfinishedGroup], left: Sequence[UnfinishedGroup], part: int) -> Goal:
    """Return the goal of a sampler with `part` of the groups that are left, of all groups in flight."""
    wanted = max(0, goal.complete - (len(groups) - len(left)))
    return Goal(-(-wanted * part // len(left)), goal.due)


def encode_request(request: Continuation) -> list[bytes | memoryview]:
    """Return the body of a call."""
    samples = [sample for group in request.groups for sample in group.samples]
    sampling = request.sampling
    head = {
        "version": request.version,
        "samples": len(request.groups[0].samples),
        "sampling": {name: getattr(sampling, name) for name in sampling.__dataclass_fields__},
        "seed": request.seed,
        "complete": request.goal.complete,
        "due": sorted(request.goal.due),
        "at_once": request.at_once,
    }
    prompts = [group.question.tokens for group in request.groups]
    arrays: list[np.ndarray] = [
        np.array([token for tokens in prompts for token in tokens], np.int32),
        np.array([len(tokens) for tokens in prompts], np.int32),
        np.array([group.number for group in request.groups], np.int64),
        np.array([len(sample.tokens) for sample in samples], np.int32),
        np.array([token for sample in samples for token in sample.tokens], np.int32),
        np.array([logp for sample in samples for logp in sample.logps], np.float32),
        np.array([sample.is_complete for sample in samples], bool),
        np.array([sample.ended for sample in samples], bool),
    ]
    return messages.encode(head, arrays)


def decode_request(message: Message) -> Continuation:
    """Return the call in a message. Versions of tokens stay with the trainer; here all are 0. Raises MessageError."""
    head = message.head
    try:
        prompts_T, lengths_P, numbers_P, lengths_S, tokens_T, logps_T, complete_S, ended_S = message.arrays
        tokens, logps = (np.split(x, np.cumsum(lengths_S)[:-1]) for x in (tokens_T, logps_T))
        of_samples = zip(tokens, logps, complete_S, ended_S, strict=True)
        samples = [
            PartialSample(ids.tolist(), of_ids.tolist(), [0] * len(ids), bool(ended), bool(is_complete))
            for ids, of_ids, is_complete, ended in of_samples
        ]
        G = head["samples"]
        prompts = np.split(prompts_T, np.cumsum(lengths_P)[:-1])
        groups = [
            UnfinishedGroup(int(number), Question(ids.tolist(), "", {}), samples[place * G : (place + 1) * G])
            for place, (ids, number) in enumerate(zip(prompts, numbers_P, strict=True))
        ]
        sampling = Sampling(**{**head["sampling"], "stop": tuple(head["sampling"]["stop"])})
        goal = Goal(head["complete"], frozenset(head["due"]))
        return Continuation(head["version"], groups, sampling, head["seed"], goal, head["at_once"])
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError(f"is no request: {error}") from error


def added(groups: Sequence[UnfinishedGroup], before: Sequence[int]) -> Continued:
    """Return what samples have beyond their first tokens. before: how many those are, of each sample."""
    samples = [sample for group in groups for sample in group.samples]
    new = [(sample.tokens[first:], sample.logps[first:]) for sample, first in zip(samples, before, strict=True)]
    return Continued(
        np.array([len(tokens) for tokens, _ in new], np.int32),
        np.array([token for tokens, _ in new for token in tokens], np.int32),
        np.array([logp for _, logps in new for logp in logps], np.float32),
        np.array([sample.ended for sample in samples], bool),
        np.array([sample.is_complete for sample in samples], bool),
    )


def append(groups: Sequence[UnfinishedGroup], reply: Continued, version: int) -> None:
    """Add what a sampler drew with the weights of this version to the samples, in place."""
    samples = [sample for group in groups for sample in group.samples]
    ends = np.cumsum(reply.lengths_S)[:-1]
    new = zip(np.split(reply.tokens_T, ends), np.split(reply.logps_T, ends), strict=True)
    for place, (sample, (tokens, logps)) in enumerate(zip(samples, new, strict=True)):
        sample.tokens += tokens.tolist()
        sample.logps += logps.tolist()
        sample.versions += [version] * len(tokens)
        sample.ended, sample.is_complete = bool(reply.ended_S[place]), bool(reply.complete_S[place])


def encode_reply(reply: Continued) -> list[bytes | memoryview]:
    """Return the body of an answer."""
    return messages.encode({"continued": True}, reply)


def decode_reply(message: Message) -> Continued:
    """Return the answer in a message. Raises MessageError."""
    if len(message.arrays) != len(Continued._fields):
        raise MessageError(f"is no reply to a request: {len(message.arrays)} arrays")
    return Continued(*message.arrays)
