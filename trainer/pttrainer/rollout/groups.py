"""Samples with their rewards, group by group, and the batch that they become.

Letters: N rows (one per sample), T tokens. Entry t of a row is the prediction of the token after t, so the
first token of a completion after a prompt of n tokens stands at t = n − 1. The mask is 1 exactly on tokens
that the policy produced, its end token included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pttrainer.batch import Batch
from pttrainer.data.prompts import Question
from pttrainer.rollout.protocol import Completions
from pttrainer.rollout.sizes import slots_for

MAX_TABLE_ROWS = 256
"""Most samples of a step that are kept for people to read."""


class Sample(NamedTuple):
    """One completion. reward: the weighted sum, NaN where any reward is missing."""

    tokens: list[int]
    logps: np.ndarray
    ended: bool
    text: str
    rewards: Mapping[str, float]
    reward: float


class Group(NamedTuple):
    """The samples of one prompt."""

    question: Question
    samples: list[Sample]


def rewards(groups: Sequence[Group]) -> np.ndarray:
    """`rewards_PG`."""
    return np.array([[sample.reward for sample in group.samples] for group in groups], np.float64)


def lay_out(
    groups: Sequence[Group],
    advantages_PG: np.ndarray,
    pad_id: int,
    length: int,
) -> Batch:
    """One row per sample, right-padded to a bucket of at most `length`. Weights are the variant's: 0 here."""
    samples = [(group.question, sample) for group in groups for sample in group.samples]
    longest = max(len(question.tokens) + len(sample.tokens) - 1 for question, sample in samples)
    N, T = len(samples), max(min(slots_for(longest), length), longest)
    tokens_NT = np.full((N, T), pad_id, np.int32)
    targets_NT = np.full((N, T), pad_id, np.int32)
    segments_NT, positions_NT = np.zeros((N, T), np.int32), np.zeros((N, T), np.int32)
    mask_NT, sampler_NT = np.zeros((N, T), np.float32), np.zeros((N, T), np.float32)
    for row, (question, sample) in enumerate(samples):
        ids = [*question.tokens, *sample.tokens]
        here, said = slice(0, len(ids) - 1), slice(len(question.tokens) - 1, len(ids) - 1)
        tokens_NT[row, here], targets_NT[row, here] = ids[:-1], ids[1:]
        segments_NT[row, here], positions_NT[row, here] = 1, np.arange(len(ids) - 1)
        mask_NT[row, said], sampler_NT[row, said] = 1.0, sample.logps
    return Batch(
        tokens_BT=tokens_NT,
        targets_BT=targets_NT,
        positions_BT=positions_NT,
        segment_ids_BT=segments_NT,
        mask_BT=mask_NT,
        weight_BT=np.zeros_like(mask_NT),
        advantages_BT=advantages_PG.reshape(N, 1).astype(np.float32) * mask_NT,
        sampler_logps_BT=sampler_NT,
    )


def facts(groups: Sequence[Group], prefix: str = "") -> dict[str, float]:
    """Completion length and truncation, for the log."""
    samples = [sample for group in groups for sample in group.samples]
    lengths = [len(sample.tokens) for sample in samples]
    return {
        f"{prefix}completion_length": float(np.mean(lengths)),
        f"{prefix}completion_length/min": float(min(lengths)),
        f"{prefix}completion_length/max": float(max(lengths)),
        f"{prefix}truncated": float(np.mean([not sample.ended for sample in samples])),
    }


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
                    "tokens": len(sample.tokens),
                    "ended": sample.ended,
                }
            )
    return rows


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
