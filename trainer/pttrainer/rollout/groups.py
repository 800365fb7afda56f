"""Samples with their rewards, group by group, and the batch that they become.

Letters: N rows (one per sample), T tokens. Entry t of a row is the prediction of the token after t, so the
first token of a completion after a prompt of n tokens stands at t = n − 1. The mask is 1 exactly on tokens
that the policy produced, its end token included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pttrainer.batch import Batch, Prompts
from pttrainer.data.prompts import Question
from pttrainer.rollout.engine import Completions, Sampling
from pttrainer.rollout.native.buckets import slots_for

MAX_TABLE_ROWS = 256
"""Most samples of a step that are kept for people to read."""


class Trip(NamedTuple):
    """What an episode of several turns has beside a completion. prompt: its own, an opening included; said: which of
    the tokens after it the model said; calls: of tools, failed: how many of them got an error; error: why there is no
    reward."""

    prompt: Sequence[int]
    said: Sequence[bool]
    transcript: Sequence[Mapping[str, Any]]
    turns: int
    calls: int
    failed: int
    error: str


class Sample(NamedTuple):
    """One completion. reward: the weighted sum, NaN where any reward is missing. tokens: after the prompt; in an
    episode of several turns (`trip`) those that were observed, too, and text is what the model said last."""

    tokens: list[int]
    logps: np.ndarray
    ended: bool
    text: str
    rewards: Mapping[str, float]
    reward: float
    trip: Trip | None = None

    @property
    def length(self) -> int:
        """Tokens that the model said."""
        return len(self.tokens) if self.trip is None else sum(self.trip.said)


class Group(NamedTuple):
    """The samples of one prompt."""

    question: Question
    samples: list[Sample]


def longest(questions: Sequence[Question], samples: int, sampling: Sampling, rewards: Sequence[str]) -> list[Group]:
    """Groups whose samples take all tokens that they may: of what is still to be sampled, the shape."""

    def one(question: Question) -> Sample:
        tokens = min(sampling.max_new_tokens, sampling.max_length - len(question.tokens))
        return Sample([0] * tokens, np.zeros(tokens), False, "", dict.fromkeys(rewards, 0.0), 0.0)

    return [Group(question, [one(question)] * samples) for question in questions]


def rewards(groups: Sequence[Group]) -> np.ndarray:
    """`rewards_PG`."""
    return np.array([[sample.reward for sample in group.samples] for group in groups], np.float64)


def reward_parts(groups: Sequence[Group]) -> dict[str, np.ndarray]:
    """`rewards_PG` of each reward alone, by name."""
    return {
        name: np.array([[sample.rewards[name] for sample in group.samples] for group in groups], np.float64)
        for name in groups[0].samples[0].rewards
    }


def lay_out(
    groups: Sequence[Group], advantages_PG: np.ndarray, pad_id: int, length: int, shared: int | None = None
) -> Batch:
    """One row per sample, right-padded to a bucket of at most `length`. Weights are the variant's: 0 here.

    shared: prompts stand once for all of their samples (`Prompts`), padded to so many tokens.
    """
    samples = [(_prompt(group, sample), sample) for group in groups for sample in group.samples]
    skipped = [0 if shared is None else len(prompt) - 1 for prompt, _ in samples]
    lengths = [len(prompt) + len(sample.tokens) - 1 for prompt, sample in samples]
    longest = max(size - before for size, before in zip(lengths, skipped, strict=True))
    N, T = len(samples), max(min(slots_for(longest), length), longest)
    tokens_NT = np.full((N, T), pad_id, np.int32)
    targets_NT = np.full((N, T), pad_id, np.int32)
    segments_NT, positions_NT = np.zeros((N, T), np.int32), np.zeros((N, T), np.int32)
    mask_NT, sampler_NT = np.zeros((N, T), np.float32), np.zeros((N, T), np.float32)
    for row, ((prompt, sample), before) in enumerate(zip(samples, skipped, strict=True)):
        ids = [*prompt, *sample.tokens][before:]
        here, after = slice(0, len(ids) - 1), slice(len(prompt) - before - 1, len(ids) - 1)
        tokens_NT[row, here], targets_NT[row, here] = ids[:-1], ids[1:]
        segments_NT[row, here], positions_NT[row, here] = 1, np.arange(before, before + len(ids) - 1)
        mask_NT[row, after] = 1.0 if sample.trip is None else sample.trip.said
        sampler_NT[row, after] = sample.logps
    return Batch(
        tokens_BT=tokens_NT,
        targets_BT=targets_NT,
        positions_BT=positions_NT,
        segment_ids_BT=segments_NT,
        mask_BT=mask_NT,
        weight_BT=np.zeros_like(mask_NT),
        advantages_BT=advantages_PG.reshape(N, 1).astype(np.float32) * mask_NT,
        sampler_logps_BT=sampler_NT,
        prompts=None if shared is None else _prompts([group.question.tokens for group in groups], pad_id, shared),
    )


def _prompts(prompts: Sequence[Sequence[int]], pad_id: int, slots: int) -> Prompts:
    """All of each prompt but its last token, right-padded."""
    tokens_PT = np.full((len(prompts), slots), pad_id, np.int32)
    segments_PT = np.zeros_like(tokens_PT)
    for row, prompt in enumerate(prompts):
        tokens_PT[row, : len(prompt) - 1], segments_PT[row, : len(prompt) - 1] = prompt[:-1], 1
    return Prompts(tokens_PT, np.arange(slots, dtype=np.int32) * segments_PT, segments_PT)


def facts(groups: Sequence[Group], prefix: str = "") -> dict[str, float]:
    """Completion length, truncation and what episodes were like, for the log."""
    samples = [sample for group in groups for sample in group.samples]
    lengths = [sample.length for sample in samples]
    ended = [sample.length for sample in samples if sample.ended]
    return {
        f"{prefix}completion_length": float(np.mean(lengths)),
        f"{prefix}completion_length/min": float(min(lengths)),
        f"{prefix}completion_length/max": float(max(lengths)),
        **({f"{prefix}completion_length/terminated": float(np.mean(ended))} if ended else {}),
        f"{prefix}truncated": float(np.mean([not sample.ended for sample in samples])),
        **{f"{prefix}{name}": value for name, value in _trip_facts(samples).items()},
    }


def _trip_facts(samples: Sequence[Sample]) -> dict[str, float]:
    trips = [sample.trip for sample in samples if sample.trip is not None]
    if not trips:
        return {}
    calls = sum(trip.calls for trip in trips)
    return {
        "episodes/turns": float(np.mean([trip.turns for trip in trips])),
        "episodes/failed": float(np.mean([bool(trip.error) for trip in trips])),
        "tools/calls": calls / len(trips),
        "tools/used": float(np.mean([trip.calls > 0 for trip in trips])),
        "tools/failed": sum(trip.failed for trip in trips) / max(calls, 1),
    }


def _prompt(group: Group, sample: Sample) -> Sequence[int]:
    return group.question.tokens if sample.trip is None else sample.trip.prompt


def table(step: int, groups: Sequence[Group], advantages_PG: np.ndarray, most: int) -> list[dict[str, Any]]:
    """Rows of the sample table: whole groups, at most `most` samples."""
    rows: list[dict[str, Any]] = []
    for group, advantages_G in zip(groups, advantages_PG, strict=True):
        if rows and len(rows) + len(group.samples) > most:
            break
        for sample, advantage in zip(group.samples, advantages_G, strict=True):
            rows.append(
                {
                    "step": step,
                    "prompt": group.question.text,
                    "completion": sample.text,
                    "reward": _number(sample.reward),
                    "rewards": {name: _number(value) for name, value in sample.rewards.items()},
                    "advantage": round(float(advantage), 6),
                    "tokens": sample.length,
                    "ended": sample.ended,
                    **({} if sample.trip is None else _told(sample.trip)),
                }
            )
    return rows


def with_advantages(rows: Sequence[Mapping[str, Any]], advantages_N: np.ndarray) -> list[dict[str, Any]]:
    """Rows of the table with advantages that became known later; the table may hold fewer rows than the rollout."""
    return [
        {**row, "advantage": round(float(advantage), 6)} for row, advantage in zip(rows, advantages_N, strict=False)
    ]


def _told(trip: Trip) -> dict[str, Any]:
    """Of an episode: every turn, and what went wrong."""
    return {
        "turns": [dict(message) for message in trip.transcript],
        "tool_calls": trip.calls,
        "tool_failures": trip.failed,
        **({"error": trip.error} if trip.error else {}),
    }


def samples_of(completions: Completions, texts: Sequence[str], scores: Any) -> list[Sample]:
    """All samples of a rollout, in the order of its rows."""
    return [
        Sample(
            tokens=completions.tokens(row),
            logps=completions.logps_NT[row, : completions.lengths_N[row]],
            ended=bool(completions.ended_N[row]),
            text=text,
            rewards={name: float(values[row]) for name, values in scores.rewards.items()},
            reward=float(scores.total[row]),
        )
        for row, text in enumerate(texts)
    ]


def _number(value: float) -> float | None:
    """JSON knows no NaN: no reward is null."""
    return None if np.isnan(value) else round(value, 6)
