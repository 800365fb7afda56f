"""The base of all algorithms that learn from rewards of their own completions.

    prompts in the run's order (`PromptStream`) → samples, rewards → rows → the trainer's log-probs → μ optimizer steps
    └─── where it is sampled, perhaps some steps ahead (`async_pipeline`) ───┘

An algorithm defines three things: which samples a step trains on (`_collect`), what follows from them alone
(`_lay_out`), and what the weights before a batch's first update add (`_with_policy_terms`). With `updatesPerBatch` = μ,
μ optimizer steps use the same samples; a checkpoint between them holds the batch. The reference is the same for all:
log-probs of the weights that the run started from, held in memory only if the job asks for them, or of such that follow
the policy (`moving_reference`), which are part of the train state.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ptapi import run_directory
from pttrainer.algorithms import prompt_sharing
from pttrainer.batch import Batch
from pttrainer.checkpoint import batch_json
from pttrainer.data.prompts import Question
from pttrainer.data.sources.images import decoding
from pttrainer.losses import loss_traits
from pttrainer.models import Params
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.disaggregated import finished_rollouts
from pttrainer.rollout.disaggregated.async_pipeline import Pipeline
from pttrainer.rollout.disaggregated.in_flight.stream import InFlightStream
from pttrainer.rollout.engine import SamplerWeights
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.rollout_data import Rollout, all_missing, missing_rewards
from pttrainer.rollout.rollout_metrics import rollout_facts
from pttrainer.rollout.sampler import PromptStream, Sampler, training_sampling
from pttrainer.runtime.reporting import spans, step_faults
from pttrainer.runtime.reporting.step_faults import Fault
from pttrainer.train_step.optimizer.moving_reference import split_reference
from pttrainer.train_step.optimizer.transformation import total_steps


class OnPolicyAlgorithm(ABC):
    """Batches from rollouts. temperature: that of sampling, and of the log-probs compared with it."""

    needs_params = True
    temperature: float
    min_rewarded = 1
    """Least samples of a prompt with a reward for it to be of use."""

    def __init__(
        self, context: Context, train: list[Question], sampler: Sampler, evaluation: Evaluation | None
    ) -> None:
        training, algorithm = context.spec.training, context.spec.algorithm
        self._context, self.evaluation, self._updates = context, evaluation, algorithm.updates_per_batch
        self._sampling = training_sampling(context)
        prompts = training.batch_size // algorithm.samples_per_prompt
        self._prompt_stream = self._stream(train, sampler, prompts)
        self._images = prompt_sharing.image_rows(context, train, algorithm.samples_per_prompt)
        self._train_images = decoding.digest(image for question in train for image in question.images)
        has_fixed = algorithm.reference_coefficient > 0 and not algorithm.has_moving_reference
        self._reference: Params | None = context.initial_params() if has_fixed else None
        self._batch: Batch | None = None
        self._facts: dict[str, float] = {}
        self.fault: Fault | None = None
        self.missing: Fault | None = None
        self.total_steps = total_steps(training, len(train), prompts, self._updates)
        ahead = context.spec.rollout.steps_ahead(self._updates)
        kept = finished_rollouts.kept(context.finished, self._prompt_stream, self._roll_out)
        self._pipeline = Pipeline(ahead, self.total_steps, self._is_first_update, context.deliver, *kept)

    @property
    def image_digests(self) -> Mapping[str, str]:
        """Return digests of the images' bytes, by part of the data that has any."""
        held_out = None if self.evaluation is None else self.evaluation.images_digest
        parts = {"train": self._train_images, "eval": held_out}
        return {part: digest for part, digest in parts.items() if digest is not None}

    @abstractmethod
    def _lay_out(self, rollout: Rollout) -> Rollout:
        """Add the rows, which follow from the samples alone."""

    @abstractmethod
    def _with_policy_terms(self, rollout: Rollout, params: Params) -> Rollout:
        """Add what follows from the weights before the first update; reference log-probs are set."""

    def _collect(self, step: int, weights: SamplerWeights) -> Rollout:
        """Return the samples of this step."""
        return self._prompt_stream.draw(step, weights)

    def _policy_params(self, params: Params) -> Params:
        """Return the weights that sample, out of those passed to `next_batch`."""
        return split_reference(params)[0]

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return a new rollout or, within its μ updates, the same batch again."""
        if self._batch is None or self._is_first_update(step):
            self._batch, self._facts = self._take(step, params)
            return self._batch, self._facts
        # What the samples are is true of every update, what they took only of the one that drew them.
        return self._batch, {
            name: value for name, value in self._facts.items() if not run_directory.is_of_machine(name)
        }

    def expected_batch(self) -> Batch | None:
        """Return a rollout whose completions have the maximum length; None with an environment."""
        spec = self._context.spec
        if spec.environment is not None:
            return None
        names = [reward.label for reward in spec.rewards]
        longest = groups.longest(self._prompt_stream.upcoming, spec.algorithm.samples_per_prompt, self._sampling, names)
        batch = self._lay_out(Rollout(0, longest)).batch
        placeholders = {
            name: batch.mask_BT for name in loss_traits.of_tokens(spec.algorithm) if getattr(batch, name) is None
        }
        return batch._replace(**placeholders)

    def expected_scores(self, *, held_out: bool) -> Iterable[Batch]:
        """Return the batch that is expected, if a reference or the policy scores it before its first update."""
        is_scored = not held_out and self._is_scored
        batch = self.expected_batch() if is_scored else None
        return [] if batch is None or self._context.scoring_parts(batch) > 1 else [batch]

    @property
    def _is_scored(self) -> bool:
        return self._reference is not None or self._context.spec.algorithm.has_moving_reference or self._scores_old

    @property
    def _scores_old(self) -> bool:
        """Return True if the policy's log-probs before a batch's first update come from the scoring pass."""
        return False

    def evaluate(self, params: Params) -> Mapping[str, float]:
        """Return the rewards of greedy completions."""
        return (
            {}
            if self.evaluation is None
            else self.evaluation.run(self._pipeline.when_idle(self._policy_params(params)))
        )

    def state(self) -> dict[str, Any]:
        """Return the count of prompts drawn, the rollout still in use, and those drawn ahead."""
        in_use = self._batch if self._updates > 1 else None
        ahead = self._pipeline.state()  # first: it waits for what still draws prompts
        batch = None if in_use is None else batch_json.to_json(in_use)
        fault, missing = step_faults.to_json(self.fault), step_faults.to_json(self.missing)
        return {
            **self._prompt_stream.state(),
            "batch": batch,
            "facts": self._facts,
            "ahead": ahead,
            "fault": fault,
            "missing": missing,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._prompt_stream.restore(state)
        self._batch = None if state["batch"] is None else batch_json.from_json(state["batch"])
        self._facts = dict(state["facts"])
        self._pipeline.restore(state.get("ahead", ()))  # older checkpoints have none
        self.fault = step_faults.from_json(state.get("fault"))
        self.missing = step_faults.from_json(state.get("missing"))

    def _stream(self, train: list[Question], sampler: Sampler, prompts: int) -> PromptStream:
        """Return the run's prompts, `prompts` for a batch."""
        spec = self._context.spec
        of = train, sampler, self._sampling, spec.training.seed, prompts, spec.algorithm.samples_per_prompt
        if not spec.rollout.in_flight_updates:
            return PromptStream(*of)
        return InFlightStream(*of, bound=spec.rollout.max_staleness, updates=self._updates)

    def _is_first_update(self, step: int) -> bool:
        return step % self._updates == 0

    def _take(self, step: int, params: Params) -> tuple[Batch, dict[str, float]]:
        """Return the rollout of this step, with log-probs of the reference and of the current weights."""
        rollout = self._pipeline.next(step, self._policy_params(params))
        began = time.monotonic()
        params, moving = split_reference(params)
        reference = self._reference if moving is None else moving
        if reference is not None:
            with spans.span("reference"):
                ref_logps_BT = self._logps(reference, rollout.batch)
            rollout = rollout.with_facts({"seconds/reference": time.monotonic() - began}, ref_logps_BT=ref_logps_BT)
        with spans.span("score"):
            rollout = self._with_policy_terms(rollout, params)
        self._context.save_samples(step + 1, rollout.table)
        self.fault, self.missing = rollout.fault, rollout.missing
        return rollout.batch, {**rollout.facts, "seconds/score": time.monotonic() - began}

    def _roll_out(self, step: int, weights: SamplerWeights) -> Rollout:
        """Sample, and compute what follows from the samples alone."""
        rollout = self._lay_out(self._collect(step, weights))
        fault, missing = missing_rewards(rollout, self.min_rewarded), all_missing(rollout)
        return replace(rollout, facts=rollout_facts(rollout), fault=fault, missing=missing)

    def _logps(self, params: Params, batch: Batch) -> Any:
        def scored(part: Batch) -> Any:
            return self._context.score(params, part, self.temperature).logps_BT

        return batch.by_parts(self._context.scoring_parts(batch), scored)
