"""The prompts of a run where samples outlive weight updates (`rollout.inFlightUpdates`).

Twice a batch's groups are in flight. A batch is the first half of them that is complete, in the order of their prompts;
the others go on with the next weights, and as many new ones are begun:

    draw t      sample with weights v until P of 2 P groups are complete
    train       on those P
    draw t + 1  sample with weights v + 1: the P groups left, then P new ones

So no step waits for its longest sample. A token's age is the number of optimizer steps between the weights that drew it
and its batch's first update, and `rollout.maxStaleness` bounds it: a draw goes on until every group is complete that
would be too old in the next batch, and those make the batch first. P groups at most can be due, because a batch leaves
no more behind. Nothing is dropped for its age, except where a run goes on with a smaller bound: then such samples are
begun anew, with the same keys, and counted.

What is sampled with which weights follows from the samples (`rows`), and not from the clock, so a run repeats. A
checkpoint keeps tokens, log-probs and versions. A resumed run goes on to the same bits, because also without a break
every draw computes what its samples have anew, with its own weights.

Unlike those of other streams, samples depend on how many rows there are (`rollout.slots`, memory): rows decide which
weights draw a token.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ptapi import run_directory
from pttrainer.data.prompts import Question
from pttrainer.errors import ConfigError
from pttrainer.rollout.disaggregated.in_flight import rows, unfinished
from pttrainer.rollout.disaggregated.in_flight.unfinished import Goal, UnfinishedGroup
from pttrainer.rollout.engine import SamplerWeights, Sampling
from pttrainer.rollout.groups import Group
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.sampler import PromptStream, Sampler

BATCHES_IN_FLIGHT = 2
"""Groups in flight, in batches. 2: then at most one batch of groups is ever due, so the bound always holds."""


class InFlightStream(PromptStream):
    """bound: of a token's age; updates: optimizer steps from one batch to the next."""

    def __init__(
        self,
        questions: Sequence[Question],
        sampler: Sampler,
        sampling: Sampling,
        seed: int,
        prompts: int,
        samples: int,
        *,
        bound: int,
        updates: int,
    ) -> None:
        if any(question.images for question in questions):
            raise ConfigError("spec.rollout.inFlightUpdates: true; accepted: false, with prompts that have images")
        super().__init__(questions, sampler, sampling, seed, prompts, samples)
        self._engine = rows.continuing(sampler.engine)
        self._bound, self._updates = bound, updates
        self._groups: list[UnfinishedGroup] = []

    def draw(self, step: int, weights: SamplerWeights) -> Rollout:
        """Sample until a batch is complete, and score it."""
        began = time.monotonic()
        dropped = self._begin_anew(step)
        while len(self._groups) < BATCHES_IN_FLIGHT * self._prompts:
            question = self._questions[self._order[self.drawn]]
            self._groups.append(unfinished.begun(self.drawn, question, self._samples))
            self.drawn += 1

        goal = Goal(self._prompts, frozenset(group.number for group in self._groups if self._is_due(group, step)))
        self._engine.go_on(weights, self._groups, self._sampling, self._seed, goal)
        batch = self._take(step)
        completions = unfinished.completions(batch)
        questions = [group.question for group in batch]
        rollout = self._sampler.scored(
            questions, [None] * len(questions), completions, self._sampling.stop, step, began
        )
        with_versions = [_with_versions(group, source) for group, source in zip(rollout.groups, batch, strict=True)]
        versions = [sample.versions for group in batch for sample in group.samples]
        ages = {f"{run_directory.STALENESS}{name}": x for name, x in unfinished.age_facts(versions, step).items()}
        left = sum(bool(sample.tokens) for group in self._groups for sample in group.samples)
        facts = {**ages, f"{run_directory.STALENESS}/dropped": float(dropped), "in_flight/samples": float(left)}
        facts["in_flight/tokens"] = float(sum(group.tokens for group in self._groups))
        return Rollout(step, with_versions, {**rollout.facts, **facts}, rollout.failures)

    def state(self) -> dict[str, Any]:
        """Return the count of prompts begun, and the groups in flight, as JSON."""
        return {**super().state(), "in_flight": [unfinished.to_json(group) for group in self._groups]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned, of this stream or of one without groups in flight."""
        super().restore(state)
        entries = state.get("in_flight", ())
        self._groups = [unfinished.from_json(x, self._questions[self._order[int(x["number"])]]) for x in entries]

    def _is_due(self, group: UnfinishedGroup, step: int) -> bool:
        """Return True if the batch after this one is too late for a group."""
        return group.oldest is not None and step + self._updates - group.oldest > self._bound

    def _take(self, step: int) -> list[UnfinishedGroup]:
        """Remove a batch of complete groups: those that are due, then the oldest prompts."""
        complete = [group for group in self._groups if group.is_complete]
        complete.sort(key=lambda group: (not self._is_due(group, step), group.number))
        batch = sorted(complete[: self._prompts], key=lambda group: group.number)
        numbers = {group.number for group in batch}
        self._groups = [group for group in self._groups if group.number not in numbers]
        return batch

    def _begin_anew(self, step: int) -> int:
        """Drop the tokens of groups that are too old already; return how many samples that are."""
        dropped = 0
        for place, group in enumerate(self._groups):
            if group.oldest is not None and step - group.oldest > self._bound:
                dropped += sum(bool(sample.tokens) for sample in group.samples)
                self._groups[place] = unfinished.begun(group.number, group.question, self._samples)
        return dropped


def _with_versions(group: Group, source: UnfinishedGroup) -> Group:
    of = zip(group.samples, source.samples, strict=True)
    return group._replace(samples=[sample._replace(versions=tuple(partial.versions)) for sample, partial in of])
