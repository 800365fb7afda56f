"""One optimizer step, as one compiled function with donated state.

Letters: M micro-batches, B rows of the batch. The gradient is the sum over micro-batches of the gradient of Σ weight ·
loss (`microbatch`), with weights from the whole step's mask: 1 × 8 rows and 8 × 1 rows are the same step up to float32
rounding.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ptapi import run_directory
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.losses.divergence import Teacher
from pttrainer.models import Params
from pttrainer.train_step import block_learner, entropy, microbatch, neftune, nonfinite
from pttrainer.train_step.critic import CriticLearner, CriticState
from pttrainer.train_step.microbatch import StepInputs, TrainableParams
from pttrainer.train_step.objective import ChoosesByEntropy
from pttrainer.train_step.optimizer import ema
from pttrainer.train_step.program import Program
from pttrainer.train_step.state import Layout, TrainState

TrainStep = Callable[..., tuple[TrainState, dict[str, Array]]]
"""(state, batch, frozen weights, teacher's weights) -> (new state, metrics); the old state's memory is reused."""


def train_step(program: Program, where: Layout) -> TrainStep:
    """Return the jitted step."""

    def step(
        state: TrainState, batch: Batch, frozen: Params | None = None, teacher_params: Params | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        if program.noise is not None or program.dropout is not None:
            batch = neftune.numbered(batch)
        if program.entropy is not None and state.entropy is not None:
            applied = program.entropy.applied(state.entropy)
            batch = batch._replace(entropy_bonus_BT=batch.entropy_bonus_BT * applied)
        loss, partials, gradient = _gradient(program, state, batch, frozen, teacher_params)
        new, facts = _updated(program, state, loss, gradient)
        if program.entropy is not None and state.entropy is not None:
            of_batch = loss_weights.finish(partials.get(entropy.CHOSEN, partials[run_directory.ENTROPY]))
            changed = program.entropy.updated(state.entropy, of_batch)
            is_skipped = new.skipped[0] > state.skipped[0]
            new = new._replace(entropy=nonfinite.choose(~is_skipped, changed, state.entropy))
            facts[entropy.COEFFICIENT] = applied
        if program.reference is not None and state.reference is not None:
            new = new._replace(reference=program.reference.updated(state.reference, new.params, new.step))
        if program.block is not None and state.block is not None and gradient.block is not None:
            count = jnp.sum(partials[block_learner.LOSS].count)
            new = new._replace(block=block_learner.updated(program.block, state.block, gradient.block, count))
        metrics = {name: loss_weights.finish(of_parts) for name, of_parts in partials.items()}
        return new, metrics | facts | {run_directory.LEARNING_RATE: program.rate(state.step)}

    return jax.jit(step, donate_argnums=0, out_shardings=(where.state, where.whole))


_Sums = tuple[Array, dict[str, loss_weights.Partial]]
"""The loss, and the contributions to metrics."""


def _gradient(
    program: Program, state: TrainState, batch: Batch, frozen: Params | None, teacher_params: Params | None
) -> tuple[*_Sums, TrainableParams]:
    """Return loss, stacked metric contributions and gradient of the whole batch, from M parts of it."""
    critic, block = (None if of is None else of.params for of in (state.critic, state.block))
    trainable = TrainableParams(state.params, critic, block)
    step_inputs = StepInputs(state.step, frozen, _teacher(program, state, frozen, teacher_params))
    M = 1 if program.micro_batch is None else max(1, batch.tokens_BT.shape[0] // program.micro_batch)
    of_part = partial(microbatch.loss, program, step_inputs=step_inputs, parts=M)
    gradient_of = jax.value_and_grad(of_part, has_aux=True)
    if M == 1:
        (_, (loss, partials)), total = gradient_of(trainable, batch)
        return loss, partials, total

    def body(total: TrainableParams, part: Batch) -> tuple[TrainableParams, _Sums]:
        (_, sums), one = gradient_of(trainable, part)
        return jax.tree.map(jnp.add, total, one), sums

    nothing = jax.tree.map(jnp.zeros_like, trainable)
    parts = _with_chosen(program, state, batch.split(M), step_inputs)
    total, (losses, partials) = jax.lax.scan(body, nothing, parts)
    return jnp.sum(losses), partials, total


def _with_chosen(program: Program, state: TrainState, parts: Batch, step_inputs: StepInputs) -> Batch:
    """Return micro-batches that agree on the tokens of highest entropy, by a pass of its own, if any are chosen."""
    objective = program.objective
    if not isinstance(objective, ChoosesByEntropy) or objective.top_entropy_share is None:
        return parts
    of_part = partial(microbatch.entropies, program, state.params, step_inputs=step_inputs)
    entropy_MBT = jax.lax.map(of_part, parts)
    return parts._replace(chosen_BT=entropy.chosen(entropy_MBT, parts.mask_BT, objective.top_entropy_share))


def _teacher(
    program: Program, state: TrainState, frozen: Params | None, teacher_params: Params | None
) -> Params | None:
    """Return the teacher's weights, if there is a teacher.

    A self-teacher combines the student's trained weights, initial or current, with its frozen ones; no gradient
    flows to them (`Teacher.stats`).
    """
    teacher, model = program.teacher, program.model
    self_weights = teacher.self_weights if isinstance(teacher, Teacher) else None
    if self_weights == "average":
        return model.join_params(frozen, ema.averaged_params(state.optimizer, state.params))
    if self_weights == "current":
        return model.join_params(frozen, state.params)
    if self_weights == "initial" and teacher_params is not None:
        return model.join_params(frozen, teacher_params)
    return teacher_params


def _updated(
    program: Program, state: TrainState, loss: Array, gradient: TrainableParams
) -> tuple[TrainState, dict[str, Array]]:
    """Return the state after the update, or the old one if loss or gradient is not finite; and its metrics."""
    norm = optax.tree.norm(gradient.policy)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    facts = {run_directory.LOSS: loss, run_directory.GRAD_NORM: norm}
    critic: CriticState | None = None
    if program.learner is not None and state.critic is not None:
        of_critic = optax.tree.norm(gradient.critic)
        is_finite &= jnp.isfinite(of_critic)
        critic = _updated_critic(program.learner, state.critic, gradient.critic, is_finite)
        facts |= {nonfinite.CRITIC_GRAD_NORM: of_critic, "critic/learning_rate": program.learner.rate(state.step)}
    updates, optimizer_state = program.updates.update(
        gradient.policy, state.optimizer, state.params, is_finite=is_finite
    )
    new = (optax.apply_updates(state.params, updates), optimizer_state, critic)
    params, optimizer_state, critic = nonfinite.choose(is_finite, new, (state.params, state.optimizer, state.critic))
    skipped = nonfinite.counted(is_finite, state.skipped)
    return TrainState(params, optimizer_state, state.step + 1, skipped, critic), facts | nonfinite.facts(skipped)


def _updated_critic(
    learner: CriticLearner, critic: CriticState, gradient: Params | None, is_finite: Array
) -> CriticState:
    """Return the critic after its own update."""
    updates, optimizer_state = learner.updates.update(gradient, critic.optimizer, critic.params, is_finite=is_finite)
    return CriticState(optax.apply_updates(critic.params, updates), optimizer_state)
