"""One optimizer step, as one compiled function with donated state.

Letters: M micro-batches, B rows of the batch. The gradient is the sum over micro-batches of the gradient of
Σ weight · loss (`microbatch`), where the weights were made from the whole step's mask: 1 × 8 rows and 8 × 1 rows are
the same step up to float32 rounding.
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
from pttrainer.losses.distillation import Guide, Hearsay
from pttrainer.models import Model, Params
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import neftune, nonfinite
from pttrainer.train_step.critic import Critic, CriticState, Learner
from pttrainer.train_step.lora_dropout import Dropout
from pttrainer.train_step.microbatch import Forward, Given, Learnt
from pttrainer.train_step.neftune import Noise
from pttrainer.train_step.objective import Objective
from pttrainer.train_step.optimizer import ema, state_sharding


class TrainState(NamedTuple):
    """Everything that a step changes. params: the trained weights (adapters alone, where there are any); step:
    optimizer steps done, int32; skipped: how many of them were skipped, and how many in a row, int32; critic: its
    weights and optimizer, where the algorithm has one."""

    params: Params
    optimizer: Any
    step: Any
    skipped: Any
    critic: CriticState | None = None


@dataclass(frozen=True)
class Layout:
    """The mesh, and where each part of the state lives on it."""

    mesh: Mesh
    state: TrainState
    frozen: Params | None
    """Of the weights that no step changes; None where there are none."""

    @property
    def whole(self) -> NamedSharding:
        """A copy on every device."""
        return sharding.replicated(self.mesh)


def layout(model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, learner: Learner | None = None) -> Layout:
    """Shardings of the state, from shapes alone. Moments live where their weights do."""
    weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    whole = sharding.replicated(mesh)
    trained = model.trained(weights)
    shapes = jax.eval_shape(optimizer.init, model.trained(model.abstract()))
    state = state_sharding.shardings(shapes, model.trained(model.abstract()), trained, whole)
    critic = None if learner is None else _critic_layout(learner, mesh, whole)
    return Layout(mesh, TrainState(trained, state, whole, whole, critic), model.frozen(weights))


def _critic_layout(learner: Learner, mesh: Mesh, whole: NamedSharding) -> CriticState:
    shapes = learner.critic.abstract()
    weights = sharding.weight_shardings(mesh, shapes, learner.critic.logical_axes())
    state = jax.eval_shape(learner.updates.init, shapes)
    return CriticState(weights, state_sharding.shardings(state, shapes, weights, whole))


def abstract_state(
    model: Model, optimizer: optax.GradientTransformation, where: Layout, learner: Learner | None = None
) -> TrainState:
    """Shapes, dtypes and shardings of the state: what a checkpoint is restored to."""

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
    learner: Learner | None = None,
) -> TrainState:
    """The state before the first step."""
    of_critic = None if learner is None or critic is None else CriticState(critic, learner.updates.init(critic))
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), jnp.zeros(2, jnp.int32), of_critic)


def score_step(model: Model, whole: NamedSharding) -> Callable[[Params, Batch, float], TokenStats]:
    """Log-probs of a batch's targets, without gradient; the result is whole on every process."""

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
    """The critic's values of all tokens, and the policy's log-probs where they are asked for (`scored`), without
    gradient; whole on every process. A critic that reads the policy's hidden states shares its one forward pass."""

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
    guide: Guide | Hearsay | None = None,
    *,
    held: Any = None,
    noise: Noise | None = None,
    dropout: Dropout | None = None,
    learner: Learner | None = None,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """The compiled step: (state, batch, frozen weights, teacher's weights) -> (new state, metrics).

    held, noise, dropout, learner: as `Forward` has them. The old state's memory is reused.
    """
    forward = Forward(model, algorithm, guide, held, noise, dropout, learner)

    def step(
        state: TrainState, batch: Batch, frozen: Params | None = None, teacher: Params | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        if noise is not None or dropout is not None:
            batch = neftune.numbered(batch)
        learnt = Learnt(state.params, None if state.critic is None else state.critic.params)
        given = Given(state.step, frozen, None if guide is None else _teacher(guide, model, state, frozen, teacher))
        parts = 1 if micro_batch is None else max(1, batch.tokens_BT.shape[0] // micro_batch)
        gradient_of = jax.value_and_grad(partial(forward.loss, given=given, parts=parts), has_aux=True)
        loss, partials, gradient = _accumulate(gradient_of, learnt, batch, parts)
        new, facts = _updated(state, loss, gradient, optimizer, learner)
        metrics = {name: loss_weights.finish(of_parts) for name, of_parts in partials.items()}
        return new, metrics | facts | {run_directory.LEARNING_RATE: rate(state.step)}

    return jax.jit(step, donate_argnums=0, out_shardings=(where.state, where.whole))


def _teacher(
    guide: Guide | Hearsay, model: Model, state: TrainState, frozen: Params | None, teacher: Params | None
) -> Params:
    """The weights that teach. Of a student that teaches itself, those that it trains, then or now, on those that it
    does not; no gradient flows to them (`Guide.stats`)."""
    itself = guide.itself if isinstance(guide, Guide) else None
    if itself == "average":
        return model.join_params(frozen, ema.of(state.optimizer, state.params))
    if itself == "current":
        return model.join_params(frozen, state.params)
    assert teacher is not None
    return teacher if itself is None else model.join_params(frozen, teacher)


_Sums = tuple[Array, dict[str, loss_weights.Partial]]
"""The loss, and what metrics are made of."""
_Gradient = Callable[[Learnt, Batch], tuple[tuple[Array, _Sums], Learnt]]


def _accumulate(gradient_of: _Gradient, learnt: Learnt, batch: Batch, M: int) -> tuple[*_Sums, Learnt]:
    """Loss, stacked metric contributions and gradient of the whole batch, from M parts of it."""
    if M == 1:
        (_, (loss, partials)), total = gradient_of(learnt, batch)
        return loss, partials, total

    def body(total: Learnt, part: Batch) -> tuple[Learnt, _Sums]:
        (_, sums), one = gradient_of(learnt, part)
        return jax.tree.map(jnp.add, total, one), sums

    total, (losses, partials) = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, learnt), batch.split(M))
    return jnp.sum(losses), partials, total


def _updated(
    state: TrainState,
    loss: Array,
    gradient: Learnt,
    optimizer: optax.GradientTransformation,
    learner: Learner | None,
) -> tuple[TrainState, dict[str, Array]]:
    """The state after the update, or the old one where loss or gradient is not finite; and what is said of it."""
    updates, optimizer_state = optimizer.update(gradient.policy, state.optimizer, state.params)
    norm = optax.tree.norm(gradient.policy)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    facts = {run_directory.LOSS: loss, run_directory.GRAD_NORM: norm}
    critic: CriticState | None = None
    if learner is not None and state.critic is not None:
        critic, of_critic = _learned(learner, state.critic, gradient.critic, state.step)
        is_finite &= jnp.isfinite(of_critic[nonfinite.CRITIC_GRAD_NORM])
        facts |= of_critic
    new = (optax.apply_updates(state.params, updates), optimizer_state, critic)
    params, optimizer_state, critic = nonfinite.choose(is_finite, new, (state.params, state.optimizer, state.critic))
    skipped = nonfinite.counted(is_finite, state.skipped)
    return TrainState(params, optimizer_state, state.step + 1, skipped, critic), facts | nonfinite.facts(skipped)


def _learned(
    learner: Learner, critic: CriticState, gradient: Params | None, step: Array
) -> tuple[CriticState, dict[str, Array]]:
    """The critic after its own update, and what is said of it."""
    updates, optimizer_state = learner.updates.update(gradient, critic.optimizer, critic.params)
    facts = {nonfinite.CRITIC_GRAD_NORM: optax.tree.norm(gradient), "critic/learning_rate": learner.rate(step)}
    return CriticState(optax.apply_updates(critic.params, updates), optimizer_state), facts
