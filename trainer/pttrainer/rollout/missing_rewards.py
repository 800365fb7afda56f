"""Rollouts from which nothing can be learned, because too few of their samples have a reward."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.sampler import Judged
from pttrainer.runtime.reporting.step_faults import Fault, Kind


def fault(judged: Judged, least: int) -> Fault | None:
    """Why nothing can be learned; None where some prompt has as many samples with a reward as it needs (`least`)."""
    if any(_rewarded(group) >= least for group in judged.groups):
        return None
    samples = [sample for group in judged.groups for sample in group.samples]
    counted = sum(math.isnan(sample.reward) for sample in samples), len(samples)
    lost = [sample.trip.error for sample in samples if sample.trip is not None and sample.trip.error]
    name, missing = _worst(samples)
    if len(lost) >= missing:
        return Fault(Kind.ENVIRONMENT, "environment", lost[0] if lost else "", *counted)
    first = judged.failures.get(name)
    return Fault(Kind.REWARD if first is None else first.kind, f"reward {name}", first.error if first else "", *counted)


def _rewarded(group: Group) -> int:
    return sum(not math.isnan(sample.reward) for sample in group.samples)


def _worst(samples: Sequence[Sample]) -> tuple[str, int]:
    """The reward that fails most, and on how many samples."""
    counts = {name: sum(math.isnan(sample.rewards[name]) for sample in samples) for name in samples[0].rewards}
    return max(counts.items(), key=lambda found: found[1], default=("", 0))
