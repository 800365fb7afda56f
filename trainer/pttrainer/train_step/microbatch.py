"""Loss and metrics of one micro-batch: the function that a step differentiates.

    tokens → hidden states ┬→ head, in chunks → Σ weight · loss of a token      with a teacher both (`divergence`)
                           ├→ the critic's values → Σ weight · their loss       if the algorithm has one (`critic`)
                           ├→ proposals → Σ their loss, of no concern to others  if a head makes any (`block_learner`)
                           └→ how experts are used → their balance loss         if the model has any

Letters: B rows, T tokens, D model, V vocabulary. Left out: the sum over micro-batches, and the use of the gradient
(`step`).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.loss_weights import Mean, Metric, Partial
from pttrainer.losses.chunked_logprobs import Head, TokenStats, token_loss, token_stats
from pttrainer.models import Params
from pttrainer.models.layers.mixture.router import RouterUse, balance_loss
from pttrainer.train_step import block_learner, neftune
from pttrainer.train_step import lora_dropout as droppings
from pttrainer.train_step.objective import HasCritic
from pttrainer.train_step.optimizer import freeze
from pttrainer.train_step.program import Program

BALANCE = "balance_loss"
"""Metric of models with experts: the number of experts per token when all are used alike, more otherwise."""
CHANGED = "routing/changed"
"""Metric where routing is replayed: the share of experts that the trainer's routers would not have chosen."""


class TrainableParams(NamedTuple):
    """The weights that the loss is differentiated by: the policy's, and those of a critic and a proposing head."""

    policy: Params
    critic: Params | None
    block: Params | None = None


class StepInputs(NamedTuple):
    """The other inputs of a step.

    step: optimizer steps done; frozen: weights under adapters; teacher_params: the teacher's weights.
    """

    step: Array
    frozen: Params | None
    teacher_params: Params | None


def loss(
    program: Program, trainable: TrainableParams, part: Batch, step_inputs: StepInputs, parts: int
) -> tuple[Array, tuple[Array, dict[str, Partial]]]:
    """Return what is minimised, and next to it the logged loss and the metrics' contributions.

    parts: micro-batches of the step, which share the balance loss.
    """
    params = program.model.join_params(step_inputs.frozen, freeze.stop_gradients(trainable.policy, program.frozen_mask))
    hidden_BTD, use = _hidden(program, params, part, step_inputs.step)
    loss, metrics = _of_tokens(program, params, hidden_BTD, part, step_inputs.teacher_params)
    if trainable.critic is not None:
        value_loss, of_critic = _of_critic(program, trainable.critic, hidden_BTD, part, step_inputs.frozen)
        loss, metrics = loss + value_loss, metrics | of_critic
    partials = {name: loss_weights.partial(metric, part.mask_BT) for name, metric in metrics.items()}
    of_block: Array | float = 0.0
    if program.block is not None and trainable.block is not None:
        head_VD, cap = program.model.head(params).astype(hidden_BTD.dtype), program.model.config.final_softcap
        of = program.block.head, trainable.block, hidden_BTD, head_VD, part, step_inputs.step, cap
        partials[block_learner.LOSS] = block_learner.loss(*of)
        of_block = partials[block_learner.LOSS].value
    if use is not None and part.routes_BTLk is not None:
        partials[CHANGED] = Partial(jnp.sum(use.changed), jnp.sum(use.tokens), Mean)
    experts = program.model.config.experts
    if use is None or experts is None or not experts.balance_coefficient:
        return loss + of_block, (loss, partials)
    balance = balance_loss(use, experts)
    partials[BALANCE] = Partial(balance, jnp.ones(()), Mean)
    return loss + of_block + experts.balance_coefficient * balance / parts, (loss, partials)


def _hidden(program: Program, params: Params, part: Batch, step: Array) -> tuple[Array, RouterUse | None]:
    """Return hidden states, and how experts are used, if the model balances any or their choice is replayed."""
    noisy = None if program.noise is None else neftune.added(program.noise, step, part)
    dropped = None if program.dropout is None else droppings.dropped(program.dropout, step, part)
    inputs = (params, part.tokens_BT, part.positions_BT, part.segment_ids_BT, noisy, dropped)
    experts = program.model.config.experts
    if experts is None or not (experts.balance_coefficient or part.routes_BTLk is not None):
        return program.model.forward(*inputs, part.prompts, part.images), None
    return program.model.forward_with_use(*inputs, part.images, part.routes_BTLk)


def _of_tokens(
    program: Program, params: Params, hidden_BTD: Array, part: Batch, teacher_params: Params | None
) -> tuple[Array, dict[str, Metric]]:
    """Return Σ weight · loss, and metrics."""
    if program.teacher is None:
        loss, stats = _of_policy(program, hidden_BTD, program.model.head(params).astype(hidden_BTD.dtype), part)
        return loss, program.objective.loss(stats, part)[1]
    assert teacher_params is not None
    teacher_stats: Any = program.teacher.stats(
        teacher_params, program.model, hidden_BTD, program.model.head(params), part
    )
    loss_BT, metrics = program.objective.loss(teacher_stats, part)
    return jnp.sum(loss_BT * part.weight_BT), metrics


def _of_policy(program: Program, hidden_BTD: Array, head_VD: Array, part: Batch) -> tuple[Array, TokenStats]:
    """Return Σ weight · loss, and the stats of the tokens."""
    objective = program.objective

    def weighted(stats: TokenStats, batch: Batch) -> Array:
        loss_BT: Array = objective.loss(stats, batch)[0].astype(jnp.float32) * batch.weight_BT
        return loss_BT

    how = _head(program, trains_entropy=part.entropy_bonus_BT is not None)
    if objective.by_token:
        return token_loss(
            weighted, how, hidden_BTD, head_VD, part._replace(prompts=None, images=None, routes_BTLk=None)
        )
    stats = token_stats(hidden_BTD, head_VD, part.targets_BT, part.mask_BT, how)
    return jnp.sum(weighted(stats, part)), stats


def entropies(program: Program, policy: Params, part: Batch, step_inputs: StepInputs) -> Array:
    """Return the entropy of each prediction that counts, [B, T]."""
    params = program.model.join_params(step_inputs.frozen, policy)
    hidden_BTD, _ = _hidden(program, params, part, step_inputs.step)
    head_VD = program.model.head(params).astype(hidden_BTD.dtype)
    return token_stats(hidden_BTD, head_VD, part.targets_BT, part.mask_BT, _head(program)).entropy_BT


def _head(program: Program, *, trains_entropy: bool = False) -> Head:
    objective, model = program.objective, program.model
    return Head(
        *(objective.temperature, model.config.final_softcap, objective.entropy),
        level=objective.level,
        trains_entropy=trains_entropy,
        sums_embedding=model.sums_embedding,
    )


def _of_critic(
    program: Program, critic: Params, hidden_BTD: Array, part: Batch, frozen: Params | None
) -> tuple[Array, dict[str, Metric]]:
    """Return Σ weight · loss of the critic's values, and metrics."""
    assert program.learner is not None
    assert isinstance(program.objective, HasCritic)
    values_BT = program.learner.critic.values(critic, hidden_BTD, part, frozen)
    loss_BT, metrics = program.objective.value_loss(values_BT, part)
    return jnp.sum(loss_BT * part.weight_BT), metrics
