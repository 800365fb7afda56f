"""Samples with their rewards, group by group, and the batch that they become.

Letters: N rows (one per sample), T tokens. Entry t of a row is the prediction of the token after t, so the first token
of a completion after a prompt of n tokens is at t = n − 1. The mask is 1 exactly on tokens that the policy produced,
its end token included.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from pttrainer.batch import Batch, Images, Prompts
from pttrainer.data.prompts import Question
from pttrainer.rollout.engine import Completions, Sampling
from pttrainer.rollout.native.buckets import slots_for

MAX_TABLE_ROWS = 256
"""Most samples of a step in the sample table."""


class EpisodeInfo(NamedTuple):
    """What an episode of several turns has besides a completion.

    prompt: its own, the environment's first turn included; sampled: which of the tokens after it the model sampled;
    calls: of tools; failed: how many of them returned an error; error: why there is no reward; is_lost: a service is at
    fault that may come back. image_slots: of the prompt, if it has images.
    """

    prompt: Sequence[int]
    sampled: Sequence[bool]
    transcript: Sequence[Mapping[str, Any]]
    turns: int
    calls: int
    failed: int
    error: str
    image_slots: np.ndarray | None = None
    is_lost: bool = False


class Sample(NamedTuple):
    """One completion. reward: the weighted sum, NaN if any reward is missing.

    tokens: after the prompt, in an episode of several turns (`episode`) with the observed ones; text is then the
    model's last turn. routes: the experts of prompt and tokens, from the first on (`Batch`), if they are recorded.
    versions: of the weights that drew each token, where samples outlive weight updates.
    """

    tokens: list[int]
    logps: np.ndarray
    ended: bool
    text: str
    rewards: Mapping[str, float]
    reward: float
    episode: EpisodeInfo | None = None
    routes: np.ndarray | None = None
    versions: Sequence[int] = ()

    @property
    def length(self) -> int:
        """Return the number of tokens that the model sampled."""
        return len(self.tokens) if self.episode is None else sum(self.episode.sampled)


class Group(NamedTuple):
    """The samples of one prompt. images: of the prompt, as a batch of one row."""

    question: Question
    samples: list[Sample]
    images: Images | None = None


def longest(questions: Sequence[Question], samples: int, sampling: Sampling, rewards: Sequence[str]) -> list[Group]:
    """Return groups whose samples have the maximum length: the shape of samples yet to come."""

    def one(question: Question) -> Sample:
        tokens = min(sampling.max_new_tokens, sampling.max_length - len(question.tokens))
        return Sample([0] * tokens, np.zeros(tokens), False, "", dict.fromkeys(rewards, 0.0), 0.0)

    return [Group(question, [one(question)] * samples) for question in questions]


class ImageRows(NamedTuple):
    """How batches of a run carry images. shape: of a prompt's pixels, [M, S, S, C], the same for all of them.

    together: the rows of a prompt are never parted, so its pixels are there once.
    """

    shape: tuple[int, ...]
    together: bool


def rewards(groups: Sequence[Group]) -> np.ndarray:
    """Return `rewards_PG`."""
    return np.array([[sample.reward for sample in group.samples] for group in groups], np.float64)


def reward_parts(groups: Sequence[Group]) -> dict[str, np.ndarray]:
    """Return `rewards_PG` of each single reward, by name."""
    return {
        name: np.array([[sample.rewards[name] for sample in group.samples] for group in groups], np.float64)
        for name in groups[0].samples[0].rewards
    }


def lay_out(
    groups: Sequence[Group],
    advantages_PG: np.ndarray,
    pad_id: int,
    length: int,
    shared: int | None = None,
    images: ImageRows | None = None,
) -> Batch:
    """Return one row per sample, right-padded to a bucket of at most `length`; weights are 0, the loss sets them.

    shared: store each prompt once for all of its samples (`Prompts`), padded to this many tokens. images: how they are
    stored, if prompts have any.
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
        mask_NT[row, after] = 1.0 if sample.episode is None else sample.episode.sampled
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
        images=None if images is None else _images(groups, images, T, shared),
        routes_BTLk=_routes([sample for _, sample in samples], T),
    )


def without_truncated(mask_NT: np.ndarray, samples: Sequence[Sample]) -> np.ndarray:
    """Return the mask without the rows of samples that a limit cut."""
    return np.where(np.array([[sample.ended] for sample in samples]), mask_NT, np.zeros_like(mask_NT))


def _routes(samples: Sequence[Sample], width: int) -> np.ndarray | None:
    """Return the experts of each row's tokens, as far as they are known; None if none are recorded."""
    recorded = [sample.routes for sample in samples if sample.routes is not None]
    if not recorded:
        return None
    numbers = recorded[0].dtype
    routes = np.full((len(samples), width, *recorded[0].shape[1:]), np.iinfo(numbers).max, numbers)
    for row, sample in enumerate(samples):
        if sample.routes is not None:
            routes[row, : len(sample.routes)] = sample.routes[:width]
    return routes


def _images(groups: Sequence[Group], how: ImageRows, width: int, shared: int | None) -> Images:
    """Return the images of the prompts, or of their rows of this width."""
    sets = [group.images for group in groups for _ in range(1 if how.together else len(group.samples))]
    pixels = np.zeros((len(sets), *how.shape), np.float32)
    for place, own in enumerate(sets):
        if own is not None:
            pixels[place][tuple(map(slice, own.pixels_BMSSC.shape[1:]))] = own.pixels_BMSSC[0]
    of_rows = [_slots(group, sample) for group in groups for sample in group.samples[: None if shared is None else 1]]
    slots = np.zeros((len(of_rows), width if shared is None else shared), np.int32)
    for row, own_T in enumerate(of_rows):
        # A prompt's last token is never of an image, and may stand elsewhere.
        slots[row, : len(own_T) - 1] = own_T[:-1]
    return Images(pixels, slots)


def _slots(group: Group, sample: Sample) -> np.ndarray:
    """Return which embedding each token of a sample's prompt has."""
    if sample.episode is not None and sample.episode.image_slots is not None:
        return sample.episode.image_slots
    return np.zeros(1, np.int32) if group.images is None else np.asarray(group.images.slots_BT[0])


def _prompts(prompts: Sequence[Sequence[int]], pad_id: int, slots: int) -> Prompts:
    """Return each prompt without its last token, right-padded."""
    tokens_PT = np.full((len(prompts), slots), pad_id, np.int32)
    segments_PT = np.zeros_like(tokens_PT)
    for row, prompt in enumerate(prompts):
        tokens_PT[row, : len(prompt) - 1], segments_PT[row, : len(prompt) - 1] = prompt[:-1], 1
    return Prompts(tokens_PT, np.arange(slots, dtype=np.int32) * segments_PT, segments_PT)


def _prompt(group: Group, sample: Sample) -> Sequence[int]:
    return group.question.tokens if sample.episode is None else sample.episode.prompt


def table(
    step: int, groups: Sequence[Group], advantages_PG: np.ndarray, most: int = MAX_TABLE_ROWS
) -> list[dict[str, Any]]:
    """Return the rows of the sample table: whole groups, at most `most` samples."""
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
                    **({"versions": _runs(sample.versions)} if sample.versions else {}),
                    **({} if sample.episode is None else _episode_columns(sample.episode)),
                }
            )
    return rows


def _runs(versions: Sequence[int]) -> list[list[int]]:
    """Return pairs of a version and how many tokens it drew, in their order."""
    return [[version, len(list(tokens))] for version, tokens in groupby(versions)]


def _episode_columns(episode: EpisodeInfo) -> dict[str, Any]:
    """Return the columns of an episode: every turn, and its error."""
    return {
        "turns": [dict(message) for message in episode.transcript],
        "tool_calls": episode.calls,
        "tool_failures": episode.failed,
        **({"error": episode.error} if episode.error else {}),
    }


def samples_of(completions: Completions, texts: Sequence[str], scores: Any) -> list[Sample]:
    """Return all samples of a rollout, in the order of its rows."""
    return [
        Sample(
            tokens=completions.tokens(row),
            logps=completions.logps_NT[row, : completions.lengths_N[row]],
            ended=bool(completions.ended_N[row]),
            text=text,
            rewards={name: float(values[row]) for name, values in scores.rewards.items()},
            reward=float(scores.total[row]),
            routes=completions.routes_of(row),
        )
        for row, text in enumerate(texts)
    ]


def grouped(
    questions: Sequence[Question], samples: Sequence[Sample], size: int, images: Sequence[Images | None]
) -> list[Group]:
    """Return groups of `size` samples, which follow each other."""
    of_prompts = zip(questions, images, strict=True)
    return [Group(q, list(samples[p * size : (p + 1) * size]), own) for p, (q, own) in enumerate(of_prompts)]


def _number(value: float) -> float | None:
    """Return null for a missing reward: JSON has no NaN."""
    return None if np.isnan(value) else round(value, 6)
