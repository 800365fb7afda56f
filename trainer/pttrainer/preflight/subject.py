"""A job as shapes: everything that decides about memory and time, with nothing allocated and no data read.

Model, optimizer, layout and loss come from the functions that training calls (`assemble.model_of`,
`program.program`, `sharding`), so there is no second idea of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from ptapi import accelerators
from ptapi.accelerators import Slice
from ptapi.spec import PostTrainJobSpec, SelfTeacher
from ptapi.split import split_of
from pttrainer import algorithms, placement, sharding
from pttrainer import step as steps
from pttrainer.algorithms.protocol import Objective
from pttrainer.assemble import model_of, open_source
from pttrainer.batch import Batch
from pttrainer.chunks import largest_chunk
from pttrainer.divergence import Hearsay
from pttrainer.models import Model, ModelConfig, Params
from pttrainer.program import Program, program
from pttrainer.session import check_batch

UNKNOWN_STEPS = 1000
"""Length of a run whose data nobody has read: a number in the schedule, not in any shape."""
TOLD = 64
"""Tokens of a teacher that offline data are taken to hold for each of the student's: nobody has read them."""


@dataclass(frozen=True)
class Subject:
    """What is judged."""

    spec: PostTrainJobSpec
    slice: Slice
    model: Model
    program: Program
    shape: sharding.Shape
    teacher: Model | None = None
    """Of distillation; of a student that teaches itself, the student."""
    sampler: sharding.Shape | None = None
    """Of the mesh that only samples; None where the mesh that trains does. `shape` is then of the other devices."""
    whole: Subject | None = None
    """What this is a shallow form of, where it is one."""

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""
        return self.model.config

    def axis(self, name: str) -> int:
        """Size of a mesh axis."""
        return self.shape[sharding.MESH_AXES.index(name)]

    @property
    def row_shards(self) -> int:
        """Over how many devices the rows of a batch are split."""
        return math.prod(self.axis(name) for name in sharding.BATCH_AXES)

    @property
    def micro_rows(self) -> int:
        """Rows of one forward and backward pass, over all devices."""
        training = self.spec.training
        return training.micro_batch_size or training.batch_size

    @property
    def tokens_per_device(self) -> int:
        """Of one forward and backward pass."""
        rows = self.micro_rows // self.row_shards
        return rows * self.spec.training.sequence_length // self.axis("sequence")

    @property
    def head_tokens_per_device(self) -> int:
        """Of one chunk that goes through the output head."""
        pieces = self.axis("sequence")
        rows, tokens = self.micro_rows * pieces, self.spec.training.sequence_length // pieces
        platform = "cpu" if self.slice.is_cpu else "tpu"
        size = largest_chunk(rows, tokens, self.config.vocab_size, self.devices, platform)
        return rows * size // (self.row_shards * pieces)

    @property
    def devices(self) -> int:
        """That train."""
        return math.prod(self.shape)

    @cached_property
    def training_slice(self) -> Slice:
        """The chips that train."""
        split = split_of(self.spec)
        return self.slice if split is None else split.trainer

    @cached_property
    def sampling_slice(self) -> Slice:
        """The chips that sample."""
        split = split_of(self.spec)
        return self.slice if split is None else split.sampler

    @cached_property
    def mesh(self) -> AbstractMesh:
        """The mesh that trains without devices: enough for shardings."""
        return _abstract_mesh(self.shape)

    @cached_property
    def sampler_mesh(self) -> AbstractMesh:
        """The mesh that samples."""
        return self.mesh if self.sampler is None else _abstract_mesh(self.sampler)

    @cached_property
    def held(self) -> Inputs:
        """What the step takes, on that mesh: for counting bytes."""
        return inputs(self, self.mesh)


class Inputs(NamedTuple):
    """Arguments of the train step, as shapes on shardings."""

    state: steps.TrainState
    batch: Batch
    frozen: Params | None
    teacher: Params | None = None


def subject(spec: PostTrainJobSpec, config: ModelConfig | None = None) -> Subject:
    """The job's shapes; raises ConfigError where they do not go together. config: where it is known already."""
    slice_ = accelerators.resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    training = spec.training
    config = config or read_config(spec)
    model = model_of(config, training, "cpu" if slice_.is_cpu else "tpu")
    shape, sampler = placement.shapes(spec, model, slice_.total_devices)
    objective, teacher = _objective(spec, model)
    step = program(spec, model, objective, spec.training.steps or UNKNOWN_STEPS)
    made = Subject(spec, slice_, model, step, shape, teacher, sampler)
    check_batch(training.batch_size, training.micro_batch_size, made.row_shards)
    sharding.check_experts(made.axis("expert"), None if config.experts is None else config.experts.count)
    return made


def _abstract_mesh(shape: sharding.Shape) -> AbstractMesh:
    axis_types = (AxisType.Auto,) * len(sharding.MESH_AXES)
    return AbstractMesh(shape, sharding.MESH_AXES, axis_types=axis_types)


def read_config(spec: PostTrainJobSpec) -> ModelConfig:
    """The model's sizes; raises ConfigError where they cannot be read."""
    return open_source(spec.model.uri, "spec.model.uri", _silent, spec.model.revision, weights=False).config


def inputs(of: Subject, mesh: Mesh | AbstractMesh) -> Inputs:
    """What the step takes, laid out on this mesh."""
    where = of.program.layout(mesh)  # type: ignore[arg-type]  # an AbstractMesh makes the same shardings
    state = of.program.abstract_state(where)
    frozen = None
    if where.frozen is not None:
        frozen = jax.tree.map(placed, of.model.frozen(of.model.abstract()), where.frozen)
    own = _self_teacher(of.spec)
    if own is not None:  # a second copy of what is trained, unless it is its average or itself
        return Inputs(state, batch(of, mesh), frozen, state.params if own.weights == "initial" else {})
    teacher = {} if is_told(of.spec) else _teacher(of.teacher, mesh)
    return Inputs(state, batch(of, mesh), frozen, teacher)


def batch(of: Subject, mesh: Mesh | AbstractMesh, rows: int | None = None) -> Batch:
    """Shapes of a training batch, as the job's algorithm lays it out; rows: of another size."""
    shape = (rows or of.spec.training.batch_size, of.spec.training.sequence_length)
    where = NamedSharding(mesh, sharding.fitting_batch_spec(mesh, shape))
    ids, numbers = (jax.ShapeDtypeStruct(shape, dtype, sharding=where) for dtype in (jnp.int32, jnp.float32))
    plain = Batch(ids, ids, ids, ids, numbers, numbers)
    own = _self_teacher(of.spec)
    if own is not None and own.privileged_context is not None:  # taken for as long as the student's rows
        plain = plain._replace(
            teacher_tokens_BU=ids, teacher_positions_BU=ids, teacher_segment_ids_BU=ids, teacher_slots_BT=ids
        )
    if is_told(of.spec):
        there = NamedSharding(mesh, sharding.fitting_batch_spec(mesh, (*shape, TOLD)))
        ids, logps = (jax.ShapeDtypeStruct((*shape, TOLD), x, sharding=there) for x in (jnp.int32, jnp.float32))
        return plain._replace(teacher_ids_BTK=ids, teacher_logps_BTK=logps)
    more = EXTRA.get(of.spec.algorithm.kind)
    return plain if more is None else plain._replace(**dict[str, Any](dict.fromkeys(more(of.spec), numbers)))


def is_told(spec: PostTrainJobSpec) -> bool:
    """Whether the data hold what a teacher said."""
    return spec.algorithm.distill is not None and spec.algorithm.distill.mode == "offline"


def bytes_per_device(tree: Any, tiled: bool = False) -> int:
    """Memory of arrays (shapes on shardings) on one device; tiled: of a TPU."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.ShapeDtypeStruct))
    elements = _in_tiles if tiled else math.prod
    return sum(elements(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def _in_tiles(shape: tuple[int, ...]) -> int:
    """Elements with what fills up tiles of 8 x 128. Two axes make them, those that waste least."""
    layouts = permutations(range(len(shape)), 2)
    return min((_filled(shape, {rows: 8, columns: 128}) for rows, columns in layouts), default=math.prod(shape))


def _filled(shape: tuple[int, ...], units: dict[int, int]) -> int:
    return math.prod(-(-size // units.get(axis, 1)) * units.get(axis, 1) for axis, size in enumerate(shape))


def _grpo(spec: PostTrainJobSpec) -> tuple[str, ...]:
    assert spec.algorithm.grpo is not None
    old = ("old_logps_BT",) if spec.algorithm.grpo.updates_per_batch > 1 else ()
    reference = ("ref_logps_BT",) if spec.algorithm.grpo.beta > 0 else ()
    return ("advantages_BT", "sampler_logps_BT", *old, *reference)


def _ppo(spec: PostTrainJobSpec) -> tuple[str, ...]:
    assert spec.algorithm.ppo is not None
    old = ("old_logps_BT",) if spec.algorithm.ppo.updates_per_batch > 1 else ()
    reference = ("ref_logps_BT",) if spec.algorithm.ppo.kl_coefficient > 0 else ()
    return ("advantages_BT", "sampler_logps_BT", "values_BT", "returns_BT", *old, *reference)


EXTRA: dict[str, Callable[[PostTrainJobSpec], tuple[str, ...]]] = {"grpo": _grpo, "ppo": _ppo}
"""Arrays of a batch beside those that all algorithms have; [B, T], float32. (DPO's are one number a row.)"""


def _objective(spec: PostTrainJobSpec, model: Model) -> tuple[Objective, Model | None]:
    """The loss, and the teacher where there is one."""
    distilled = spec.algorithm.distill
    if spec.algorithm.ppo is not None:
        from pttrainer.algorithms import ppo  # here, as for distill below

        return ppo.Loss(spec, ppo.critic_of(spec.algorithm.ppo, model, _silent, weights=False)[0]), None
    if distilled is None:
        return algorithms.objective(spec), None
    if distilled.self_teacher is not None:
        from pttrainer.algorithms import distill as of_itself

        return of_itself.Loss(of_itself.guide_of_itself(distilled, model), {}), model
    from pttrainer.algorithms import distill  # here: with it come data and rollouts, which others do not need

    if distilled.teacher is None or is_told(spec):
        return distill.Loss(Hearsay(distilled.beta), {}), None
    uri, field = distilled.teacher.uri, "spec.algorithm.distill.teacher.uri"
    teacher = open_source(uri, field, _silent, distilled.teacher.revision, weights=False).config
    guide = distill.guide_of(distilled, teacher, model)
    return distill.Loss(guide, guide.model.abstract()), guide.model


def _self_teacher(spec: PostTrainJobSpec) -> SelfTeacher | None:
    return None if spec.algorithm.distill is None else spec.algorithm.distill.self_teacher


def _teacher(model: Model | None, mesh: Mesh | AbstractMesh) -> Params | None:
    """Its weights, sharded as training shards them."""
    if model is None:
        return None
    shapes = model.abstract()
    where = sharding.weight_shardings(mesh, shapes, model.logical_axes())  # type: ignore[arg-type]  # as for the state
    found: Params = jax.tree.map(placed, shapes, where)
    return found


def placed(x: Any, where: Any) -> jax.ShapeDtypeStruct:
    """The shape on its sharding."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)


def _silent(line: str) -> None:
    del line
