"""One optimizer step, as one compiled function with donated state.

Letters: M micro-batches, B rows of the batch. The gradient is the sum over micro-batches of the gradient of Σ weight ·
loss (`microbatch`), with weights from the whole step's mask: 1 × 8 rows and 8 × 1 rows are the same step up to float32
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding

from ptapi import run_directory
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.losses.chunked_logprobs import TokenStats, token_stats
from pttrainer.losses.distillation import OfflineTeacher, Teacher
from pttrainer.models import Model, Params
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import neftune, nonfinite
from pttrainer.train_step.critic import Critic, CriticLearner, CriticState
from pttrainer.train_step.lora_dropout import Dropout
from pttrainer.train_step.microbatch import Forward, StepInputs, TrainableParams
from pttrainer.train_step.neftune import Noise
from pttrainer.train_step.objective import Objective
from pttrainer.train_step.optimizer import ema, state_sharding


class TrainState(NamedTuple):
    """Everything that a step changes.

    params: the trained weights (adapters alone, if there are any); step: optimizer steps done, int32; skipped: how many
    of them were skipped, and how many in a row, int32; critic: its weights and optimizer, if the algorithm has one.
    """

    params: Params
    optimizer: Any
    step: Any
    skipped: Any
    critic: CriticState | None = None


@dataclass(frozen=True)
class Layout:
    """The mesh, and the shardings of the state on it."""

    mesh: Mesh
    state: TrainState
    frozen: Params | None
    """Shardings of the weights that no step changes; None without any."""

    @property
    def whole(self) -> NamedSharding:
        """Return the sharding with a copy on every device."""
        return sharding.replicated(self.mesh)


def layout(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, learner: CriticLearner | None = None
) -> Layout:
    """Return the shardings of the state, from shapes alone. Moments are sharded like their weights."""
    weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    whole = sharding.replicated(mesh)
    trained = model.trained(weights)
    shapes = jax.eval_shape(optimizer.init, model.trained(model.abstract()))
    state = state_sharding.shardings(shapes, model.trained(model.abstract()), trained, whole)
    critic = None if learner is None else _critic_layout(learner, mesh, whole)
    return Layout(mesh, TrainState(trained, state, whole, whole, critic), model.frozen(weights))


def _critic_layout(learner: CriticLearner, mesh: Mesh, whole: NamedSharding) -> CriticState:
    shapes = learner.critic.abstract()
    weights = sharding.weight_shardings(mesh, shapes, learner.critic.logical_axes())
    state = jax.eval_shape(learner.updates.init, shapes)
    return CriticState(weights, state_sharding.shardings(state, shapes, weights, whole))


def abstract_state(
    model: Model, optimizer: optax.GradientTransformation, where: Layout, learner: CriticLearner | None = None
) -> TrainState:
    """Return shapes, dtypes and shardings of the state, to restore a checkpoint to."""

    def fresh(params: Params, critic: Params | None) -> TrainState:
        return new_state(params, optimizer, critic, learner)

    critic = None if learner is None else learner.critic.abstract()
    shapes = jax.eval_shape(fresh, model.trained(model.abstract()), critic)
    place: Callable[[Any, Any], Any] = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)  # noqa: E731
    state: TrainState = jax.tree.map(place, shapes, where.state)
    return state


def new_state(
    params: Params,
    optimizer: optax.GradientTransformation,
    critic: Params | None = None,
    learner: CriticLearner | None = None,
) -> TrainState:
    """Return the state before the first step."""
    of_critic = None if learner is None or critic is None else CriticState(critic, learner.updates.init(critic))
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), jnp.zeros(2, jnp.int32), of_critic)


def score_step(model: Model, whole: NamedSharding) -> Callable[[Params, Batch, float], TokenStats]:
    """Return the jitted log-probs of a batch's targets, without gradient; replicated on every process."""

    def score(params: Params, batch: Batch, temperature: float) -> TokenStats:
        rows = batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT
        hidden_BTD = model.forward(params, *rows, prompts=batch.prompts)
        head = model.head(params).astype(hidden_BTD.dtype)
        cap = model.config.final_softcap
        return token_stats(hidden_BTD, head, batch.targets_BT, batch.mask_BT, temperature=temperature, softcap=cap)

    return jax.jit(score, out_shardings=whole, static_argnums=2)


def value_step(
    model: Model, critic: Critic, whole: NamedSharding, temperature: float, *, scored: bool
) -> Callable[[Params, Params, Batch], tuple[Array, Array | None]]:
    """Return the jitted critic values of all tokens and, if `scored`, the policy's log-probs, without gradient.

    Both are replicated on every process. A critic that reads the policy's hidden states shares its one forward pass.
    """

    def values(params: Params, critic_params: Params, batch: Batch) -> tuple[Array, Array | None]:
        hidden_BTD, logps_BT = None, None
        if scored or critic.model is None:
            hidden_BTD = model.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
        if scored and hidden_BTD is not None:
            head, cap = model.head(params).astype(hidden_BTD.dtype), model.config.final_softcap
            stats = token_stats(hidden_BTD, head, batch.targets_BT, batch.mask_BT, temperature=temperature, softcap=cap)
            logps_BT = stats.logps_BT
        return critic.values(critic_params, hidden_BTD, batch, model.frozen(params)), logps_BT

    return jax.jit(values, out_shardings=whole)


def train_step(
    model: Model,
    algorithm: Objective,
    optimizer: optax.GradientTransformation,
    rate: optax.Schedule,
    where: Layout,
    micro_batch: int | None,
    teacher: Teacher | OfflineTeacher | None = None,
    *,
    frozen_mask: Any = None,
    noise: Noise | None = None,
    dropout: Dropout | None = None,
    learner: CriticLearner | None = None,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Return the jitted step: (state, batch, frozen weights, teacher's weights) -> (new state, metrics).

    frozen_mask, noise, dropout, learner: as in `Forward`. The old state's memory is reused.
    """
    forward = Forward(model, algorithm, teacher, frozen_mask, noise, dropout, learner)

    def step(
        state: TrainState, batch: Batch, frozen: Params | None = None, teacher_params: Params | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        if noise is not None or dropout is not None:
            batch = neftune.numbered(batch)
        trainable = TrainableParams(state.params, None if state.critic is None else state.critic.params)
        step_inputs = StepInputs(
            state.step, frozen, None if teacher is None else _teacher(teacher, model, state, frozen, teacher_params)
        )
        parts = 1 if micro_batch is None else max(1, batch.tokens_BT.shape[0] // micro_batch)
        gradient_of = jax.value_and_grad(partial(forward.loss, step_inputs=step_inputs, parts=parts), has_aux=True)
        loss, partials, gradient = _accumulate(gradient_of, trainable, batch, parts)
        new, facts = _updated(state, loss, gradient, optimizer, learner)
        metrics = {name: loss_weights.finish(of_parts) for name, of_parts in partials.items()}
        return new, metrics | facts | {run_directory.LEARNING_RATE: rate(state.step)}

    return jax.jit(step, donate_argnums=0, out_shardings=(where.state, where.whole))


def _teacher(
    teacher: Teacher | OfflineTeacher,
    model: Model,
    state: TrainState,
    frozen: Params | None,
    teacher_params: Params | None,
) -> Params:
    """Return the teacher's weights.

    A self-teacher combines the student's trained weights, initial or current, with its frozen ones; no gradient
    flows to them (`Teacher.stats`).
    """
    self_weights = teacher.self_weights if isinstance(teacher, Teacher) else None
    if self_weights == "average":
        return model.join_params(frozen, ema.averaged_params(state.optimizer, state.params))
    if self_weights == "current":
        return model.join_params(frozen, state.params)
    assert teacher_params is not None
    return teacher_params if self_weights is None else model.join_params(frozen, teacher_params)


_Sums = tuple[Array, dict[str, loss_weights.Partial]]
"""The loss, and the contributions to metrics."""
_Gradient = Callable[[TrainableParams, Batch], tuple[tuple[Array, _Sums], TrainableParams]]


def _accumulate(
    gradient_of: _Gradient, trainable: TrainableParams, batch: Batch, M: int
) -> tuple[*_Sums, TrainableParams]:
    """Return loss, stacked metric contributions and gradient of the whole batch, from M parts of it."""
    if M == 1:
        (_, (loss, partials)), total = gradient_of(trainable, batch)
        return loss, partials, total

    def body(total: TrainableParams, part: Batch) -> tuple[TrainableParams, _Sums]:
        (_, sums), one = gradient_of(trainable, part)
        return jax.tree.map(jnp.add, total, one), sums

    total, (losses, partials) = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, trainable), batch.split(M))
    return jnp.sum(losses), partials, total


def _updated(
    state: TrainState,
    loss: Array,
    gradient: TrainableParams,
    optimizer: optax.GradientTransformation,
    learner: CriticLearner | None,
) -> tuple[TrainState, dict[str, Array]]:
    """Return the state after the update, or the old one if loss or gradient is not finite; and its metrics."""
    updates, optimizer_state = optimizer.update(gradient.policy, state.optimizer, state.params)
    norm = optax.tree.norm(gradient.policy)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    facts = {run_directory.LOSS: loss, run_directory.GRAD_NORM: norm}
    critic: CriticState | None = None
    if learner is not None and state.critic is not None:
        critic, of_critic = _updated_critic(learner, state.critic, gradient.critic, state.step)
        is_finite &= jnp.isfinite(of_critic[nonfinite.CRITIC_GRAD_NORM])
        facts |= of_critic
    new = (optax.apply_updates(state.params, updates), optimizer_state, critic)
    params, optimizer_state, critic = nonfinite.choose(is_finite, new, (state.params, state.optimizer, state.critic))
    skipped = nonfinite.counted(is_finite, state.skipped)
    return TrainState(params, optimizer_state, state.step + 1, skipped, critic), facts | nonfinite.facts(skipped)


def _updated_critic(
    learner: CriticLearner, critic: CriticState, gradient: Params | None, step: Array
) -> tuple[CriticState, dict[str, Array]]:
    """Return the critic after its own update, and its metrics."""
    updates, optimizer_state = learner.updates.update(gradient, critic.optimizer, critic.params)
    facts = {nonfinite.CRITIC_GRAD_NORM: optax.tree.norm(gradient), "critic/learning_rate": learner.rate(step)}
    return CriticState(optax.apply_updates(critic.params, updates), optimizer_state), facts
