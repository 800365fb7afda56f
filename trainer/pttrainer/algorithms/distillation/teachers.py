"""The teacher in distillation: another model, the student itself, or log-probs that come with a batch; and its prompts.

A separate teacher is sharded as the student is and computes in its format. A self-teacher may read another prompt
before the same completion: its rows are then next to the student's in the batch.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ptapi.spec import Distill as DistillSpec
from ptapi.spec import SelfTeacher
from pttrainer.batch import Batch
from pttrainer.data.distillation import privileged_context
from pttrainer.data.prompts import Question
from pttrainer.errors import ConfigError
from pttrainer.losses.divergence import OfflineTeacher, Teacher
from pttrainer.models import Model, ModelConfig, Params
from pttrainer.models.loading.model_loader import load_params
from pttrainer.models.loading.model_spec import auxiliary_structure, open_source
from pttrainer.models.shapes import parameters
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.groups import Group
from pttrainer.runtime.distributed import sharding

UNBOUNDED = 1 << 30
"""No length limit: a teacher's rows are as long as their prompts require."""


def load_teacher(context: Context, spec: DistillSpec) -> tuple[Teacher | OfflineTeacher, Params]:
    """Return the comparison and the teacher's weights; for a self-teacher, those that it trains.

    Raises ConfigError.
    """
    if spec.has_teacher_logprobs:
        return OfflineTeacher(spec.beta), {}
    if spec.self_teacher is None:
        return _teacher(context, spec)
    teacher = self_teacher(spec, context.model)
    is_initial = spec.self_teacher.weights == "initial"
    return teacher, context.model.trained(context.initial_params()) if is_initial else {}


def _teacher(context: Context, spec: DistillSpec) -> tuple[Teacher, Params]:
    """Load the teacher's weights, sharded as the student's are, in its compute format."""
    assert spec.teacher is not None
    assert spec.teacher.uri is not None
    field = "spec.algorithm.distill.teacher.uri"
    started = time.monotonic()
    source = open_source(spec.teacher.uri, field, context.note, spec.teacher.revision)
    sizes = source.config.vocab_size, context.model.config.vocab_size
    if min(sizes) < context.tokenizer.size:
        raise ConfigError(
            f"{field}: {spec.teacher.uri}: has {sizes[0]} tokens and the student {sizes[1]}, but the tokenizer has "
            f"{context.tokenizer.size}; accepted: a teacher with the student's tokenizer"
        )
    teacher = teacher_for(spec, source.config, context.model)
    model = teacher.model
    shardings = sharding.weight_shardings(context.mesh, model.abstract(), model.logical_axes())
    # Random weights of another seed than the student's: a teacher that is the student teaches nothing.
    params = load_params(source, model, shardings, seed=context.spec.training.seed + 1)
    context.note(
        f"teacher: {spec.teacher.uri}, {parameters.count(source.config):,} weights, {time.monotonic() - started:.1f} s"
    )
    return teacher, params


def teacher_for(spec: DistillSpec, teacher: ModelConfig, student: Model) -> Teacher:
    """Return the comparison with a teacher of this config, which computes in the student's format."""
    return Teacher(Model.from_structure(auxiliary_structure(teacher, student)), spec.beta, spec.top_k)


def self_teacher(spec: DistillSpec, student: Model) -> Teacher:
    """Return the comparison of a student with itself."""
    assert spec.self_teacher is not None
    return Teacher(student, spec.beta, spec.top_k, self_weights=spec.self_teacher.weights)


def with_privileged_context(context: Context, spec: SelfTeacher | None, questions: list[Question]) -> list[Question]:
    """Return the questions, with the teacher's prompt in those where it reads more."""
    if spec is None or spec.privileged_context is None:
        return questions
    extended = privileged_context.with_teacher_prompts(spec.privileged_context, questions, context.chat)
    extra_tokens = [len(one.teacher_tokens) - len(one.tokens) for one in extended]
    context.note(
        f"the teacher's prompts are {min(extra_tokens)} to {max(extra_tokens)} tokens longer than the student's"
    )
    return extended


def with_teacher_rows(batch: Batch, sampled_groups: Sequence[Group], pad_id: int) -> Batch:
    """Return the batch with the rows of a teacher that reads another prompt before the same completion."""
    extended = [group.question for group in sampled_groups]
    teacher_groups = [
        group._replace(question=replace(group.question, tokens=group.question.teacher_tokens))
        for group in sampled_groups
    ]
    rows = groups.lay_out(teacher_groups, np.zeros((len(teacher_groups), 1)), pad_id, UNBOUNDED)
    later_B1 = np.array([[len(one.teacher_tokens) - len(one.tokens)] for one in extended])
    slots_BT = np.arange(batch.mask_BT.shape[1]) + later_B1
    return batch._replace(
        teacher_tokens_BU=rows.tokens_BT,
        teacher_positions_BU=rows.positions_BT,
        teacher_segment_ids_BU=rows.segment_ids_BT,
        teacher_slots_BT=np.clip(slots_BT, 0, rows.tokens_BT.shape[1] - 1).astype(np.int32),
    )
