"""The train step of a job, from its spec and model: what training runs and what preflight compiles.

One place combines optimizer, frozen weights and noise, so that the step whose memory preflight predicts is the step
that runs. Nothing here reads data or creates weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from ptapi.spec import PostTrainJobSpec
from pttrainer.losses.divergence import OfflineTeacher, Teacher
from pttrainer.models import Model, Params
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import entropy
from pttrainer.train_step.block_learner import BlockLearner, BlockState, block_learner
from pttrainer.train_step.critic import CriticLearner, CriticState
from pttrainer.train_step.entropy import EntropyControl, EntropyState
from pttrainer.train_step.lora_dropout import Dropout
from pttrainer.train_step.neftune import Noise
from pttrainer.train_step.objective import HasCritic, HasTeacher, Objective
from pttrainer.train_step.optimizer import freeze, freeze_patterns, state_sharding, transformation
from pttrainer.train_step.optimizer.moving_reference import MovingReference, moving_reference
from pttrainer.train_step.state import Layout, TrainState


@dataclass(frozen=True)
class Program:
    """The parts of the step, without the mesh.

    updates, rate: of the optimizer. micro_batch: rows; None: the whole batch. frozen_mask: what is frozen (`freeze`).
    noise: on embeddings (`neftune`). dropout: on adapter inputs. learner: the critic of an algorithm that has one.
    block: the head that proposes tokens, if one does. entropy: the adaptive coefficient of a bonus on it.
    reference: how a reference follows the policy, if one does.
    """

    model: Model
    objective: Objective
    updates: optax.GradientTransformationExtraArgs
    rate: optax.Schedule
    micro_batch: int | None = None
    frozen_mask: Any = None
    noise: Noise | None = None
    dropout: Dropout | None = None
    learner: CriticLearner | None = None
    block: BlockLearner | None = None
    entropy: EntropyControl | None = None
    reference: MovingReference | None = None

    @property
    def teacher(self) -> Teacher | OfflineTeacher | None:
        """Return the teacher, if the algorithm has one."""
        return self.objective.teacher if isinstance(self.objective, HasTeacher) else None

    def layout(self, mesh: Mesh) -> Layout:
        """Return the shardings of the state, from shapes alone. Moments are sharded like their weights."""
        abstract, whole = self.model.abstract(), sharding.replicated(mesh)
        weights = sharding.weight_shardings(mesh, abstract, self.model.logical_axes())
        shapes, trained = self.model.trained(abstract), self.model.trained(weights)
        optimizer = state_sharding.shardings(jax.eval_shape(self.updates.init, shapes), shapes, trained, whole)
        critic = None if self.learner is None else _critic_layout(self.learner, mesh, whole)
        block = None if self.block is None else _block_layout(self.block, mesh, whole)
        control = None if self.entropy is None else EntropyState(whole, whole)
        reference = None if self.reference is None else trained
        state = TrainState(trained, optimizer, whole, whole, critic, block, control, reference)
        return Layout(mesh, state, self.model.frozen(weights))

    def new_state(self, params: Params, critic: Params | None = None, reference: Params | None = None) -> TrainState:
        """Return the state before the first step. critic: its weights; reference: the first ones if not `params`."""
        of_critic = None
        if self.learner is not None and critic is not None:
            of_critic = CriticState(critic, self.learner.updates.init(critic))
        count, skipped = jnp.zeros((), jnp.int32), jnp.zeros(2, jnp.int32)
        block = None if self.block is None else self.block.new_state()
        control = None if self.entropy is None else self.entropy.new_state()
        followed = None if self.reference is None else params if reference is None else reference
        return TrainState(params, self.updates.init(params), count, skipped, of_critic, block, control, followed)

    def abstract_state(self, where: Layout) -> TrainState:
        """Return shapes, dtypes and shardings of the state, to restore a checkpoint to."""
        critic = None if self.learner is None else self.learner.critic.abstract()
        shapes = jax.eval_shape(self.new_state, self.model.trained(self.model.abstract()), critic)
        place: Callable[[Any, Any], Any] = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)  # noqa: E731
        state: TrainState = jax.tree.map(place, shapes, where.state)
        return state


def _critic_layout(learner: CriticLearner, mesh: Mesh, whole: NamedSharding) -> CriticState:
    shapes = learner.critic.abstract()
    weights = sharding.weight_shardings(mesh, shapes, learner.critic.logical_axes())
    state = jax.eval_shape(learner.updates.init, shapes)
    return CriticState(weights, state_sharding.shardings(state, shapes, weights, whole))


def _block_layout(learner: BlockLearner, mesh: Mesh, whole: NamedSharding) -> BlockState:
    shapes = learner.head.abstract()
    weights = sharding.weight_shardings(mesh, shapes, learner.head.logical_axes())
    state = jax.eval_shape(learner.updates.init, shapes)
    return BlockState(weights, state_sharding.shardings(state, shapes, weights, whole))


def program(spec: PostTrainJobSpec, model: Model, objective: Objective, total_steps: int) -> Program:
    """Return the step that this job trains with."""
    training = spec.training
    peak = transformation.peak_rate(training, spec.algorithm.kind)
    rate = transformation.schedule(training.schedule, peak, total_steps)
    axes = model.trained(model.logical_axes())
    patterns = freeze_patterns.patterns_of(training, model.config)
    frozen_mask = freeze.frozen_mask(patterns, model.config) if patterns else None
    noise = None if training.neftune_alpha is None else Noise(training.neftune_alpha, training.seed)
    share = 0.0 if training.lora is None else training.lora.dropout
    dropout = Dropout(share, training.seed) if share else None
    updates = transformation.build(training.optimizer, rate, axes, frozen_mask=frozen_mask, average=training.ema)
    learner = _learner(spec, objective, total_steps) if isinstance(objective, HasCritic) else None
    drafts = None if spec.rollout.speculative is None else spec.rollout.speculative.block
    block = None if drafts is None else block_learner(drafts, model.config.d_model, training.seed)
    of_grpo = entropy.control(spec.algorithm.grpo), moving_reference(spec.algorithm.grpo)
    rows = training.micro_batch_size
    return Program(model, objective, updates, rate, rows, frozen_mask, noise, dropout, learner, block, *of_grpo)


def _learner(spec: PostTrainJobSpec, objective: HasCritic, total_steps: int) -> CriticLearner:
    """Return the critic with the job's update rule and schedule, at its own rate."""
    training, critic = spec.training, objective.critic
    peak = objective.critic_rate or transformation.critic_rate(training, spec.algorithm.kind)
    rate = transformation.schedule(training.schedule, peak, total_steps)
    return CriticLearner(critic, transformation.build(training.optimizer, rate, critic.logical_axes()), rate)
