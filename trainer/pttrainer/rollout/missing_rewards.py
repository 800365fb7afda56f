"""Detect rollouts without enough rewards to learn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.sampler import Judged
from pttrainer.runtime.reporting.step_faults import Fault, Kind


def fault(judged: Judged, min_rewarded: int) -> Fault | None:
    """Return why nothing can be learned; None if some prompt has at least `min_rewarded` samples with a reward."""
    if any(_rewarded(group) >= min_rewarded for group in judged.groups):
        return None
    samples = [sample for group in judged.groups for sample in group.samples]
    counted = sum(math.isnan(sample.reward) for sample in samples), len(samples)
    episode_errors = [sample.episode.error for sample in samples if sample.episode is not None and sample.episode.error]
    name, missing = _worst(samples)
    if len(episode_errors) >= missing:
        return Fault(Kind.ENVIRONMENT, "environment", episode_errors[0] if episode_errors else "", *counted)
    first = judged.failures.get(name)
    return Fault(Kind.REWARD if first is None else first.kind, f"reward {name}", first.error if first else "", *counted)


def _rewarded(group: Group) -> int:
    return sum(not math.isnan(sample.reward) for sample in group.samples)


def _worst(samples: Sequence[Sample]) -> tuple[str, int]:
    """Return the reward that fails most often, and on how many samples."""
    counts = {name: sum(math.isnan(sample.rewards[name]) for sample in samples) for name in samples[0].rewards}
    return max(counts.items(), key=lambda item: item[1], default=("", 0))
