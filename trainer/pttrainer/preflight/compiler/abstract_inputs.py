"""The compiler's input: the step that training would run, and its arguments as shapes on shardings.

Model, optimizer, layout and loss come from the functions that training calls, so the step is defined once.
"""

from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh

from pttrainer import algorithms
from pttrainer.batch import Batch, Images
from pttrainer.losses.divergence import OfflineTeacher
from pttrainer.models import Model, Params
from pttrainer.preflight.shapes.job_shapes import (
    JobShapes,
    batch_arrays,
    has_teacher_logprobs,
    image_arrays,
    route_arrays,
    self_teacher,
)
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step.critic import Critic
from pttrainer.train_step.objective import Objective
from pttrainer.train_step.program import Program, program
from pttrainer.train_step.state import TrainState

UNKNOWN_STEPS = 1000
"""Length of a run whose data is not read: a number in the schedule, in no shape."""


class Inputs(NamedTuple):
    """Arguments of the train step, as shapes on shardings."""

    state: TrainState
    batch: Batch
    frozen: Params | None
    teacher: Params | None = None


def model_of(of: JobShapes) -> Model:
    """Return the model of a job's shapes, able to compute."""
    return Model.from_structure(of.structure)


def program_of(of: JobShapes) -> Program:
    """Return the step that this job trains with."""
    return program(of.spec, model_of(of), _objective(of), of.spec.training.steps or UNKNOWN_STEPS)


def inputs(of: JobShapes, mesh: Mesh | AbstractMesh) -> Inputs:
    """Return the step's arguments, laid out on this mesh."""
    step, model = program_of(of), model_of(of)
    where = step.layout(mesh)  # type: ignore[arg-type]  # an AbstractMesh makes the same shardings
    state = step.abstract_state(where)
    frozen = None
    if where.frozen is not None:
        frozen = jax.tree.map(placed, model.frozen(model.abstract()), where.frozen)
    own = self_teacher(of.spec)
    if own is not None:  # a second copy of what is trained, unless it is its average or itself
        return Inputs(state, batch(of, mesh), frozen, state.params if own.weights == "initial" else {})
    return Inputs(state, batch(of, mesh), frozen, {} if has_teacher_logprobs(of.spec) else _teacher(of, mesh))


def batch(of: JobShapes, mesh: Mesh | AbstractMesh, rows: int | None = None) -> Batch:
    """Return the shapes of a training batch; rows: of another size."""

    def made(arrays: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, Any]:
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.batch_sharding(mesh, shape))
            for name, (shape, dtype) in arrays.items()
        }

    images = made(image_arrays(of.spec, of.config.vision, rows))
    arrays = batch_arrays(of.spec, rows) | route_arrays(of.spec, of.config, rows)
    return Batch(**made(arrays), images=Images(**images) if images else None)


def placed(x: Any, where: Any) -> jax.ShapeDtypeStruct:
    """Return the shape on its sharding."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)


def _objective(of: JobShapes) -> Objective:
    """Return the loss."""
    distilled = of.spec.algorithm.distill
    if of.critic is not None:
        from pttrainer.algorithms import ppo, reward  # here, as for distill below

        own = None if of.critic.structure is None else Model.from_structure(of.critic.structure)
        critic = Critic(of.critic.width, own, of.critic.has_bias)
        return ppo.Loss(of.spec, critic) if of.spec.algorithm.reward is None else reward.Loss(of.spec, critic)
    if of.spec.algorithm.sdpo is not None:
        from pttrainer.algorithms.distillation import sdpo  # here, as for distill below

        return sdpo.Loss(of.spec, sdpo.teacher_of(of.spec.algorithm.sdpo, model_of(of)), {})
    if distilled is None:
        return algorithms.objective(of.spec)
    from pttrainer.algorithms.distillation import distill, teachers  # here: with it come data and rollouts

    if distilled.self_teacher is not None:
        return distill.Loss(teachers.self_teacher(distilled, model_of(of)), {})
    if of.teacher is None:
        return distill.Loss(OfflineTeacher(distilled.beta), {})
    teacher = teachers.teacher_for(distilled, of.teacher.config, model_of(of))
    return distill.Loss(teacher, teacher.model.abstract())


def _teacher(of: JobShapes, mesh: Mesh | AbstractMesh) -> Params | None:
    """Return the teacher's weights, sharded like in training."""
    if of.teacher is None:
        return None
    model = Model.from_structure(of.teacher)
    shapes = model.abstract()
    where = sharding.weight_shardings(mesh, shapes, model.logical_axes())  # type: ignore[arg-type]  # as for the state
    params: Params = jax.tree.map(placed, shapes, where)
    return params
