"""Loss and metrics of one micro-batch: the function that a step differentiates.

    tokens → hidden states ┬→ head, in chunks → Σ weight · loss of a token      with a teacher both (`distillation`)
                           ├→ the critic's values → Σ weight · their loss       if the algorithm has one (`critic`)
                           └→ how evenly experts are used → their balance loss  if the model has any

Letters: B rows, T tokens, D model, V vocabulary. Left out: the sum over micro-batches, and the use of the gradient
(`step`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.loss_weights import Mean, Metric, Partial
from pttrainer.losses.chunked_logprobs import Head, TokenStats, token_loss, token_stats
from pttrainer.losses.distillation import OfflineTeacher, Teacher
from pttrainer.models import Model, Params
from pttrainer.train_step import lora_dropout as droppings
from pttrainer.train_step import neftune
from pttrainer.train_step.critic import CriticLearner
from pttrainer.train_step.lora_dropout import Dropout
from pttrainer.train_step.neftune import Noise
from pttrainer.train_step.objective import HasCritic, Objective
from pttrainer.train_step.optimizer import freeze

BALANCE = "balance_loss"
"""Metric of models with experts: the number of experts per token when all are used alike, more otherwise."""


class TrainableParams(NamedTuple):
    """The weights that the loss is differentiated by: the policy's, and the critic's if there is one."""

    policy: Params
    critic: Params | None


class StepInputs(NamedTuple):
    """The other inputs of a step.

    step: optimizer steps done; frozen: weights under adapters; teacher_params: the teacher's weights.
    """

    step: Array
    frozen: Params | None
    teacher_params: Params | None


@dataclass(frozen=True)
class Forward:
    """The function from weights and a micro-batch to its loss.

    frozen_mask: what is frozen (`freeze`). noise: on the embeddings (`neftune`). dropout: on adapter inputs.
    learner: the critic of an algorithm that has one (`HasCritic`).
    """

    model: Model
    objective: Objective
    teacher: Teacher | OfflineTeacher | None
    frozen_mask: Any
    noise: Noise | None
    dropout: Dropout | None
    learner: CriticLearner | None

    def loss(
        self, trainable: TrainableParams, part: Batch, step_inputs: StepInputs, parts: int
    ) -> tuple[Array, tuple[Array, dict[str, Partial]]]:
        """Return what is minimised, and next to it the logged loss and the metrics' contributions.

        parts: micro-batches of the step, which share the balance loss.
        """
        params = self.model.join_params(step_inputs.frozen, freeze.stop_gradients(trainable.policy, self.frozen_mask))
        hidden_BTD, balance = self._hidden(params, part, step_inputs.step)
        loss, metrics = self._of_tokens(params, hidden_BTD, part, step_inputs.teacher_params)
        if trainable.critic is not None:
            value_loss, of_critic = self._of_critic(trainable.critic, hidden_BTD, part, step_inputs.frozen)
            loss, metrics = loss + value_loss, metrics | of_critic
        partials = {name: loss_weights.partial(metric, part.mask_BT) for name, metric in metrics.items()}
        if balance is None or self.model.config.experts is None:
            return loss, (loss, partials)
        partials[BALANCE] = Partial(balance, jnp.ones(()), Mean)
        return loss + self.model.config.experts.balance_coefficient * balance / parts, (loss, partials)

    def _hidden(self, params: Params, part: Batch, step: Array) -> tuple[Array, Array | None]:
        """Return hidden states, and how evenly experts are used, if the model balances any."""
        noisy = None if self.noise is None else neftune.added(self.noise, step, part)
        dropped = None if self.dropout is None else droppings.dropped(self.dropout, step, part)
        inputs = (params, part.tokens_BT, part.positions_BT, part.segment_ids_BT, noisy, dropped)
        experts = self.model.config.experts
        if experts is None or not experts.balance_coefficient:
            return self.model.forward(*inputs, part.prompts), None
        return self.model.forward_balanced(*inputs)

    def _of_tokens(
        self, params: Params, hidden_BTD: Array, part: Batch, teacher_params: Params | None
    ) -> tuple[Array, dict[str, Metric]]:
        """Return Σ weight · loss, and metrics."""
        if self.teacher is None:
            loss, stats = self._of_policy(hidden_BTD, self.model.head(params).astype(hidden_BTD.dtype), part)
            return loss, self.objective.loss(stats, part)[1]
        assert teacher_params is not None
        teacher_stats: Any = self.teacher.stats(teacher_params, self.model, hidden_BTD, self.model.head(params), part)
        loss_BT, metrics = self.objective.loss(teacher_stats, part)
        return jnp.sum(loss_BT * part.weight_BT), metrics

    def _of_policy(self, hidden_BTD: Array, head_VD: Array, part: Batch) -> tuple[Array, TokenStats]:
        """Return Σ weight · loss, and the stats of the tokens."""
        objective = self.objective

        def weighted(stats: TokenStats, batch: Batch) -> Array:
            loss_BT: Array = objective.loss(stats, batch)[0].astype(jnp.float32) * batch.weight_BT
            return loss_BT

        how = Head(objective.temperature, self.model.config.final_softcap, objective.entropy, level=objective.level)
        if objective.by_token:
            return token_loss(weighted, how, hidden_BTD, head_VD, part._replace(prompts=None))
        stats = token_stats(hidden_BTD, head_VD, part.targets_BT, part.mask_BT, **how._asdict())
        return jnp.sum(weighted(stats, part)), stats

    def _of_critic(
        self, critic: Params, hidden_BTD: Array, part: Batch, frozen: Params | None
    ) -> tuple[Array, dict[str, Metric]]:
        """Return Σ weight · loss of the critic's values, and metrics."""
        assert self.learner is not None
        assert isinstance(self.objective, HasCritic)
        values_BT = self.learner.critic.values(critic, hidden_BTD, part, frozen)
        loss_BT, metrics = self.objective.value_loss(values_BT, part)
        return jnp.sum(loss_BT * part.weight_BT), metrics
