"""One optimizer step, as one compiled function with donated state.

Letters: M micro-batches, B rows of the batch. The gradient is the sum over micro-batches of the gradient of
Σ weight · loss, where the weights were made from the whole step's mask: 1 × 8 rows and 8 × 1 rows are the
same step up to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptapi import rundir
from pttrainer import dropout as droppings
from pttrainer import ema, freezing, moments, neftune, nonfinite, reduce, sharding
from pttrainer.algorithms.protocol import Criticised, Objective
from pttrainer.batch import Batch
from pttrainer.critic import Critic, CriticState, Learner
from pttrainer.divergence import Guide, Hearsay
from pttrainer.dropout import Dropout
from pttrainer.losses import Head, TokenStats, token_loss, token_stats
from pttrainer.models import Model, Params
from pttrainer.models.layers import Drop
from pttrainer.neftune import Noise
from pttrainer.reduce import Mean, Metric


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
        return NamedSharding(self.mesh, PartitionSpec())


def layout(model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, learner: Learner | None = None) -> Layout:
    """Shardings of the state, from shapes alone. Moments live where their weights do."""
    weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    whole = NamedSharding(mesh, PartitionSpec())
    trained = model.trained(weights)
    shapes = jax.eval_shape(optimizer.init, model.trained(model.abstract()))
    state = moments.shardings(shapes, model.trained(model.abstract()), trained, whole)
    critic = None if learner is None else _critic_layout(learner, mesh, whole)
    return Layout(mesh, TrainState(trained, state, whole, whole, critic), model.frozen(weights))


def _critic_layout(learner: Learner, mesh: Mesh, whole: NamedSharding) -> CriticState:
    shapes = learner.critic.abstract()
    weights = sharding.weight_shardings(mesh, shapes, learner.critic.logical_axes())
    state = jax.eval_shape(learner.updates.init, shapes)
    return CriticState(weights, moments.shardings(state, shapes, weights, whole))


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

    held: what is frozen (`freezing`). noise: on the embeddings (`neftune`). dropout: on what adapters read. learner:
    the critic of an algorithm that has one (`Criticised`).

    The old state's memory is reused.
    """

    def step(
        state: TrainState, batch: Batch, frozen: Params | None = None, teacher: Params | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        kinds: dict[str, type[Metric]] = {}  # filled while tracing: a metric's kind is not an array

        def objective(learnt: _Learnt, part: Batch) -> tuple[Array, tuple[Array, dict[str, reduce.Partial]]]:
            trained, critic = learnt
            params = model.whole(frozen, freezing.stop(trained, held))
            noisy = None if noise is None else neftune.added(noise, state.step, part)
            dropped = None if dropout is None else droppings.dropped(dropout, state.step, part)
            hidden_BTD, balance = _hidden(model, params, part, noisy, dropped)
            head = model.head(params).astype(hidden_BTD.dtype)
            stats: Any  # of tokens, or with a guide also their divergence from it
            if guide is None:
                loss, stats = _loss(model, algorithm, hidden_BTD, head, part)
            else:
                told = _teacher(guide, model, state, frozen, teacher)
                stats = guide.stats(told, model, hidden_BTD, model.head(params), part)
                loss = jnp.sum(algorithm.loss(stats, part)[0] * part.weight_BT)
            _, metrics = algorithm.loss(stats, part)
            if learner is not None and critic is not None and isinstance(algorithm, Criticised):
                values_BT = learner.critic.values(critic, hidden_BTD, part, frozen)
                value_loss_BT, of_critic = algorithm.value_loss(values_BT, part)
                loss, metrics = loss + jnp.sum(value_loss_BT * part.weight_BT), metrics | of_critic
            kinds.update({name: type(metric) for name, metric in metrics.items()})
            partials = {name: reduce.partial(metric, part.mask_BT) for name, metric in metrics.items()}
            if balance is not None:
                kinds[BALANCE], partials[BALANCE] = Mean, (balance, jnp.ones(()))
            parts = batch.tokens_BT.shape[0] // part.tokens_BT.shape[0]
            return loss + _balance_term(model, balance) / parts, (loss, partials)

        if noise is not None or dropout is not None:
            batch = neftune.numbered(batch)
        gradient_of = jax.value_and_grad(objective, has_aux=True)
        before = state.params, None if state.critic is None else state.critic.params
        loss, partials, (gradient, of_critic) = _accumulate(gradient_of, before, batch, micro_batch)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        norm = optax.tree.norm(gradient)
        is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        critic: CriticState | None = None
        critic_facts: dict[str, Array] = {}
        if learner is not None and state.critic is not None:
            critic, critic_facts = _learned(learner, state.critic, of_critic, state.step)
            is_finite &= jnp.isfinite(critic_facts[CRITIC_GRAD_NORM])
        new = (optax.apply_updates(state.params, updates), optimizer_state, critic)
        params, optimizer_state, critic = nonfinite.choose(
            is_finite, new, (state.params, state.optimizer, state.critic)
        )
        skipped = nonfinite.counted(is_finite, state.skipped)
        metrics = {name: reduce.finish(kinds[name], partial) for name, partial in partials.items()}
        metrics |= {rundir.LOSS: loss, rundir.GRAD_NORM: norm, rundir.LEARNING_RATE: rate(state.step)}
        metrics |= critic_facts | nonfinite.facts(skipped)
        return TrainState(params, optimizer_state, state.step + 1, skipped, critic), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(where.state, where.whole))


CRITIC_GRAD_NORM = "critic/grad_norm"


def _learned(
    learner: Learner, critic: CriticState, gradient: Params | None, step: Array
) -> tuple[CriticState, dict[str, Array]]:
    """The critic after its own update, and what is said of it."""
    updates, optimizer_state = learner.updates.update(gradient, critic.optimizer, critic.params)
    facts = {CRITIC_GRAD_NORM: optax.tree.norm(gradient), "critic/learning_rate": learner.rate(step)}
    return CriticState(optax.apply_updates(critic.params, updates), optimizer_state), facts


BALANCE = "balance_loss"
"""Metric of models with experts: the number of experts per token when all are used alike, more otherwise."""


def _loss(
    model: Model, algorithm: Objective, hidden_BTD: Array, head_VD: Array, part: Batch
) -> tuple[Array, TokenStats]:
    """Σ weight · loss of one micro-batch, and the stats of its tokens."""

    def weighted(stats: TokenStats, batch: Batch) -> Array:
        loss_BT: Array = algorithm.loss(stats, batch)[0].astype(jnp.float32) * batch.weight_BT
        return loss_BT

    how = Head(algorithm.temperature, model.config.final_softcap, algorithm.entropy, level=algorithm.level)
    if algorithm.by_token:
        return token_loss(weighted, how, hidden_BTD, head_VD, part._replace(prompts=None))
    stats = token_stats(hidden_BTD, head_VD, part.targets_BT, part.mask_BT, **how._asdict())
    return jnp.sum(weighted(stats, part)), stats


def _teacher(
    guide: Guide | Hearsay, model: Model, state: TrainState, frozen: Params | None, teacher: Params | None
) -> Params:
    """The weights that teach. Of a student that teaches itself, those that it trains, then or now, on those that it
    does not; no gradient flows to them (`Guide.stats`)."""
    itself = guide.itself if isinstance(guide, Guide) else None
    if itself == "average":
        return model.whole(frozen, ema.of(state.optimizer, state.params))
    if itself == "current":
        return model.whole(frozen, state.params)
    assert teacher is not None
    return teacher if itself is None else model.whole(frozen, teacher)


def _hidden(
    model: Model,
    params: Params,
    part: Batch,
    noisy: Callable[[Array], Array] | None,
    dropped: Callable[[Array], Drop] | None,
) -> tuple[Array, Array | None]:
    """Hidden states, and how evenly the experts are used, where the model has any and is to be balanced."""
    inputs = (params, part.tokens_BT, part.positions_BT, part.segment_ids_BT, noisy, dropped)
    experts = model.config.experts
    if experts is None or not experts.balance_coefficient:
        return model.forward(*inputs, part.prompts), None
    return model.forward_balanced(*inputs)


def _balance_term(model: Model, balance: Array | None) -> Array:
    if balance is None or model.config.experts is None:
        return jnp.zeros(())
    return model.config.experts.balance_coefficient * balance


_Learnt = tuple[Params, Params | None]
"""What the loss is differentiated by: the trained weights, and the critic's."""
_Gradient = Callable[[_Learnt, Batch], tuple[tuple[Array, tuple[Array, dict[str, reduce.Partial]]], _Learnt]]


def _accumulate(
    gradient: _Gradient, params: _Learnt, batch: Batch, micro_batch: int | None
) -> tuple[Array, dict[str, reduce.Partial], _Learnt]:
    """Loss, stacked metric contributions and gradient of the whole batch."""
    rows = batch.tokens_BT.shape[0]
    M = 1 if micro_batch is None else max(1, rows // micro_batch)
    if M == 1:
        (_, (loss, partials)), total = gradient(params, batch)
        return loss, partials, total

    def body(total: _Learnt, part: Batch) -> tuple[_Learnt, tuple[Array, dict[str, reduce.Partial]]]:
        (_, (loss, partials)), one = gradient(params, part)
        return jax.tree.map(jnp.add, total, one), (loss, partials)

    total, (losses, partials) = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), batch.split(M))
    return jnp.sum(losses), partials, total
