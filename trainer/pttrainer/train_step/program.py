"""The train step of a job, from its spec and model: what training runs and what preflight compiles.

One place combines optimizer, frozen weights and noise, so that the step whose memory preflight predicts is the step
that runs. Nothing here reads data or creates weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optax
from jax.sharding import Mesh

from ptapi.spec import PostTrainJobSpec
from pttrainer.models import Model
from pttrainer.train_step import step as steps
from pttrainer.train_step.critic import CriticLearner
from pttrainer.train_step.lora_dropout import Dropout
from pttrainer.train_step.neftune import Noise
from pttrainer.train_step.objective import HasCritic, HasTeacher, Objective
from pttrainer.train_step.optimizer import freeze, transformation
from pttrainer.train_step.step import Layout, TrainState


@dataclass(frozen=True)
class Program:
    """The parts of the step, without the mesh. frozen_mask: what is frozen (`freeze`)."""

    model: Model
    objective: Objective
    updates: optax.GradientTransformation
    rate: optax.Schedule
    micro_batch: int | None
    frozen_mask: Any
    noise: Noise | None
    dropout: Dropout | None
    learner: CriticLearner | None = None

    def layout(self, mesh: Mesh) -> Layout:
        """Return the shardings of the state."""
        return steps.layout(self.model, self.updates, mesh, self.learner)

    def abstract_state(self, where: Layout) -> TrainState:
        """Return the abstract state that a checkpoint is restored to."""
        return steps.abstract_state(self.model, self.updates, where, self.learner)

    def train_step(self, where: Layout) -> Any:
        """Return the jitted step."""
        return steps.train_step(
            self.model,
            self.objective,
            self.updates,
            self.rate,
            where,
            self.micro_batch,
            self.objective.teacher if isinstance(self.objective, HasTeacher) else None,
            frozen_mask=self.frozen_mask,
            noise=self.noise,
            dropout=self.dropout,
            learner=self.learner,
        )


def program(spec: PostTrainJobSpec, model: Model, objective: Objective, total_steps: int) -> Program:
    """Return the step that this job trains with."""
    training = spec.training
    peak = transformation.peak_rate(training, spec.algorithm.kind)
    rate = transformation.schedule(training.schedule, peak, total_steps)
    axes = model.trained(model.logical_axes())
    frozen_mask = freeze.frozen_mask(training.freeze, model.config) if training.freeze else None
    noise = None if training.neftune_alpha is None else Noise(training.neftune_alpha, training.seed)
    share = 0.0 if training.lora is None else training.lora.dropout
    dropout = Dropout(share, training.seed) if share else None
    updates = transformation.build(training.optimizer, rate, axes, frozen_mask=frozen_mask, average=training.ema)
    learner = _learner(spec, objective, total_steps) if isinstance(objective, HasCritic) else None
    return Program(model, objective, updates, rate, training.micro_batch_size, frozen_mask, noise, dropout, learner)


def _learner(spec: PostTrainJobSpec, objective: HasCritic, total_steps: int) -> CriticLearner:
    """Return the critic with the job's update rule and schedule, at its own rate."""
    training, critic = spec.training, objective.critic
    peak = objective.critic_rate or transformation.critic_rate(training, spec.algorithm.kind)
    rate = transformation.schedule(training.schedule, peak, total_steps)
    return CriticLearner(critic, transformation.build(training.optimizer, rate, critic.logical_axes()), rate)
