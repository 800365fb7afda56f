"""A step's samples on their way from the engine to the batch, one value in three stages.

    sampled       groups, facts, failures              `Sampler.sample`
    laid out      batch, table, rewards_N, ended_N     `laid_out`: what follows from the samples alone
    for a step    the policy's terms in the batch      the algorithm, with the weights before the first update

A checkpoint keeps one that is laid out, without its groups.

Letters: P prompts, G samples per prompt, N = P·G.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pttrainer.batch import Batch
from pttrainer.checkpoint import batch_json
from pttrainer.rewards import Verdict
from pttrainer.rollout import groups as sample_groups
from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.speculative.verify import add_counts, with_rates
from pttrainer.runtime.reporting import step_faults
from pttrainer.runtime.reporting.step_faults import Fault, Kind

_OF_ROWS = ("rewards_N", "ended_N")


@dataclass(frozen=True)
class Rollout:
    """The samples of one step.

    facts: for the log; those of several draws add up. failures: by reward, the first verdict without one. table: for
    people. rewards_N: NaN where there is none. ended_N: False where a completion was cut. fault: why nothing can be
    learned from it; missing: why samples have no reward, though others may.
    """

    step: int
    groups: list[Group]
    facts: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, Verdict] = field(default_factory=dict)
    rows: Batch | None = None
    table: list[dict[str, Any]] = field(default_factory=list)
    rewards_N: Any = None
    ended_N: Any = None
    fault: Fault | None = None
    missing: Fault | None = None

    @property
    def batch(self) -> Batch:
        """Return the rows of a rollout that is laid out."""
        assert self.rows is not None
        return self.rows

    @property
    def samples(self) -> list[Sample]:
        """Return all samples, group by group."""
        return [sample for group in self.groups for sample in group.samples]

    def with_more(self, chosen: list[Group], more: Rollout) -> Rollout:
        """Return the groups chosen from both, with the cost of both."""
        facts = with_rates(add_counts(self.facts, more.facts))
        return replace(self, groups=chosen, facts=facts, failures={**self.failures, **more.failures})

    def laid_out(self, batch: Batch, advantages_PG: np.ndarray, facts: Mapping[str, float]) -> Rollout:
        """Add the batch, the sample table, and facts about both."""
        return replace(
            self,
            rows=batch,
            table=sample_groups.table(self.step + 1, self.groups, advantages_PG),
            rewards_N=np.array([sample.reward for sample in self.samples]),
            ended_N=np.array([sample.ended for sample in self.samples]),
            facts={**self.facts, **facts},
        )

    def with_facts(self, facts: Mapping[str, float], **arrays: Any) -> Rollout:
        """Add facts, and arrays to the batch."""
        return replace(self, rows=self.batch._replace(**arrays), facts={**self.facts, **facts})


def to_json(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout that is laid out as JSON, without its groups."""
    of_rows = {name: batch_json.encode(x) for name in _OF_ROWS if (x := getattr(rollout, name)) is not None}
    faults = {"fault": step_faults.to_json(rollout.fault), "missing": step_faults.to_json(rollout.missing)}
    log_fields = {"facts": rollout.facts, "table": rollout.table, **faults}
    return {"step": rollout.step, "batch": batch_json.to_json(rollout.batch), **log_fields, **of_rows}


def from_json(entry: Mapping[str, Any]) -> Rollout:
    """Return the rollout that `to_json` wrote."""
    rewards_N, ended_N = (batch_json.decode(entry[name]) if name in entry else None for name in _OF_ROWS)
    return Rollout(
        entry["step"],
        groups=[],
        facts=entry["facts"],
        rows=batch_json.from_json(entry["batch"]),
        table=entry["table"],
        rewards_N=rewards_N,
        ended_N=ended_N,
        fault=step_faults.from_json(entry.get("fault")),  # older checkpoints have none
        missing=step_faults.from_json(entry.get("missing")),
    )


def missing_rewards(rollout: Rollout, min_rewarded: int) -> Fault | None:
    """Return why nothing can be learned; None if some prompt has at least `min_rewarded` samples with a reward."""
    if any(sum(not math.isnan(x.reward) for x in group.samples) >= min_rewarded for group in rollout.groups):
        return None
    return all_missing(rollout)


def all_missing(rollout: Rollout) -> Fault:
    """Return how many samples have no reward, of how many, and what failed most."""
    samples = rollout.samples
    counted = sum(math.isnan(sample.reward) for sample in samples), len(samples)
    failed = [sample.episode for sample in samples if sample.episode is not None and sample.episode.error]
    name, missing = _most_often_missing(samples)
    if len(failed) >= missing:
        lost = [episode for episode in failed if episode.is_lost]
        kind, of_kind = (Kind.SERVICE, lost) if 2 * len(lost) > len(failed) else (Kind.ENVIRONMENT, failed)
        return Fault(kind, "environment", of_kind[0].error if of_kind else "", *counted)
    first = rollout.failures.get(name)
    return Fault(Kind.REWARD if first is None else first.kind, f"reward {name}", first.error if first else "", *counted)


def _most_often_missing(samples: Sequence[Sample]) -> tuple[str, int]:
    """Return the reward that fails most often, and on how many samples."""
    counts = {name: sum(math.isnan(sample.rewards[name]) for sample in samples) for name in samples[0].rewards}
    return max(counts.items(), key=lambda item: item[1], default=("", 0))
