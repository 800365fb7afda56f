"""Loss and metrics of one micro-batch: what a step takes the gradient of.

    tokens → hidden states ┬→ head, in chunks → Σ weight · loss of a token      with a teacher of both (`divergence`)
                           ├→ the critic's values → Σ weight · their loss       where the algorithm has one (`critic`)
                           └→ how evenly experts are used → their balance loss  where the model has any

Letters: B rows, T tokens, D model, V vocabulary. Left out: how micro-batches add up, and what becomes of the gradient
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
from pttrainer.losses.distillation import Guide, Hearsay
from pttrainer.models import Model, Params
from pttrainer.train_step import lora_dropout as droppings
from pttrainer.train_step import neftune
from pttrainer.train_step.critic import Learner
from pttrainer.train_step.lora_dropout import Dropout
from pttrainer.train_step.neftune import Noise
from pttrainer.train_step.objective import Criticised, Objective
from pttrainer.train_step.optimizer import freeze

BALANCE = "balance_loss"
"""Metric of models with experts: the number of experts per token when all are used alike, more otherwise."""


class Learnt(NamedTuple):
    """What the loss is differentiated by: the trained weights, and the critic's where there is one."""

    policy: Params
    critic: Params | None


class Given(NamedTuple):
    """What a step computes with beside them. step: optimizer steps done; frozen: weights that adapters are on; teacher:
    of whoever teaches."""

    step: Array
    frozen: Params | None
    teacher: Params | None


@dataclass(frozen=True)
class Forward:
    """From weights and a micro-batch to its loss. held: what is frozen (`freezing`). noise: on the embeddings
    (`neftune`). dropout: on what adapters read. learner: the critic of an algorithm that has one (`Criticised`)."""

    model: Model
    objective: Objective
    guide: Guide | Hearsay | None
    held: Any
    noise: Noise | None
    dropout: Dropout | None
    learner: Learner | None

    def loss(
        self, learnt: Learnt, part: Batch, given: Given, parts: int
    ) -> tuple[Array, tuple[Array, dict[str, Partial]]]:
        """What is minimised, and beside it the loss that is logged and what the metrics need. parts: micro-batches of
        the step, which share the balance loss."""
        params = self.model.join_params(given.frozen, freeze.stop(learnt.policy, self.held))
        hidden_BTD, balance = self._hidden(params, part, given.step)
        loss, metrics = self._of_tokens(params, hidden_BTD, part, given.teacher)
        if learnt.critic is not None:
            value_loss, of_critic = self._of_critic(learnt.critic, hidden_BTD, part, given.frozen)
            loss, metrics = loss + value_loss, metrics | of_critic
        partials = {name: loss_weights.partial(metric, part.mask_BT) for name, metric in metrics.items()}
        if balance is None or self.model.config.experts is None:
            return loss, (loss, partials)
        partials[BALANCE] = Partial(balance, jnp.ones(()), Mean)
        return loss + self.model.config.experts.balance_coefficient * balance / parts, (loss, partials)

    def _hidden(self, params: Params, part: Batch, step: Array) -> tuple[Array, Array | None]:
        """Hidden states, and how evenly the experts are used, where the model has any and is to be balanced."""
        noisy = None if self.noise is None else neftune.added(self.noise, step, part)
        dropped = None if self.dropout is None else droppings.dropped(self.dropout, step, part)
        inputs = (params, part.tokens_BT, part.positions_BT, part.segment_ids_BT, noisy, dropped)
        experts = self.model.config.experts
        if experts is None or not experts.balance_coefficient:
            return self.model.forward(*inputs, part.prompts), None
        return self.model.forward_balanced(*inputs)

    def _of_tokens(
        self, params: Params, hidden_BTD: Array, part: Batch, teacher: Params | None
    ) -> tuple[Array, dict[str, Metric]]:
        """Σ weight · loss, and metrics."""
        if self.guide is None:
            loss, stats = self._of_policy(hidden_BTD, self.model.head(params).astype(hidden_BTD.dtype), part)
            return loss, self.objective.loss(stats, part)[1]
        assert teacher is not None
        guided: Any = self.guide.stats(teacher, self.model, hidden_BTD, self.model.head(params), part)
        loss_BT, metrics = self.objective.loss(guided, part)
        return jnp.sum(loss_BT * part.weight_BT), metrics

    def _of_policy(self, hidden_BTD: Array, head_VD: Array, part: Batch) -> tuple[Array, TokenStats]:
        """Σ weight · loss, and the stats of the tokens."""
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
        """Σ weight · loss of its values, and metrics."""
        assert self.learner is not None
        assert isinstance(self.objective, Criticised)
        values_BT = self.learner.critic.values(critic, hidden_BTD, part, frozen)
        loss_BT, metrics = self.objective.value_loss(values_BT, part)
        return jnp.sum(loss_BT * part.weight_BT), metrics
