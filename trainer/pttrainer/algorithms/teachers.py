"""Who teaches in distillation: another model, the student itself, or what the data say; and what a teacher is told.

A teacher of its own is sharded as the student is and computes in its format. One that is the student may read another
prompt before the same completion: its rows are then beside the student's in the batch.
"""

from __future__ import annotations

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
from pttrainer.losses.distillation import Guide, Hearsay
from pttrainer.models import Model, ModelConfig, Params
from pttrainer.models.loading.model_loader import load_params
from pttrainer.models.loading.model_spec import auxiliary_structure, open_source
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.groups import Group
from pttrainer.runtime.distributed import sharding

UNBOUNDED = 1 << 30
"""A teacher's rows are as long as what it is told makes them."""


def taught(context: Context, spec: DistillSpec) -> tuple[Guide | Hearsay, Params]:
    """How the student is compared, and with whose weights; of a student that teaches itself, those it trains.
    Raises ConfigError."""
    if spec.mode == "offline":
        return Hearsay(spec.beta), {}
    if spec.self_teacher is None:
        return _teacher(context, spec)
    guide = guide_of_itself(spec, context.model)
    is_first = spec.self_teacher.weights == "initial"
    return guide, context.model.trained(context.initial_params()) if is_first else {}


def _teacher(context: Context, spec: DistillSpec) -> tuple[Guide, Params]:
    """The teacher's weights, sharded as the student's are, in the format that it computes in."""
    assert spec.teacher is not None
    field = "spec.algorithm.distill.teacher.uri"
    started = time.monotonic()
    source = open_source(spec.teacher.uri, field, context.note, spec.teacher.revision)
    sizes = source.config.vocab_size, context.model.config.vocab_size
    if min(sizes) < context.tokenizer.size:
        raise ConfigError(
            f"{field}: {spec.teacher.uri}: has {sizes[0]} tokens and the student {sizes[1]}, but the tokenizer has "
            f"{context.tokenizer.size}; accepted: a teacher with the student's tokenizer"
        )
    guide = guide_of(spec, source.config, context.model)
    model = guide.model
    shardings = sharding.weight_shardings(context.mesh, model.abstract(), model.logical_axes())
    # Random weights of another seed than the student's: a teacher that is the student teaches nothing.
    params = load_params(source, model, shardings, seed=context.spec.training.seed + 1)
    context.note(
        f"teacher: {spec.teacher.uri}, {source.config.parameters:,} weights, {time.monotonic() - started:.1f} s"
    )
    return guide, params


def guide_of(spec: DistillSpec, teacher: ModelConfig, student: Model) -> Guide:
    """The comparison with a teacher of these sizes, which computes in the student's format."""
    return Guide(Model.from_structure(auxiliary_structure(teacher, student)), spec.beta, spec.top_k)


def guide_of_itself(spec: DistillSpec, student: Model) -> Guide:
    """The comparison of a student with itself."""
    assert spec.self_teacher is not None
    return Guide(student, spec.beta, spec.top_k, itself=spec.self_teacher.weights)


def told(context: Context, spec: SelfTeacher | None, questions: list[Question]) -> list[Question]:
    """The questions, each with what its teacher reads where that is told more."""
    if spec is None or spec.privileged_context is None:
        return questions
    asked = privileged_context.with_teacher_prompts(spec.privileged_context, questions, context.chat)
    more = [len(one.teacher_tokens) - len(one.tokens) for one in asked]
    context.note(f"the teacher's prompts are {min(more)} to {max(more)} tokens longer than the student's")
    return asked


def with_teacher(batch: Batch, judged: Sequence[Group], pad_id: int) -> Batch:
    """The batch with the rows of a teacher that reads another prompt (`told`) before the same completion."""
    asked = [group.question for group in judged]
    read = [group._replace(question=replace(group.question, tokens=group.question.teacher_tokens)) for group in judged]
    rows = groups.lay_out(read, np.zeros((len(read), 1)), pad_id, UNBOUNDED)
    later_B1 = np.array([[len(one.teacher_tokens) - len(one.tokens)] for one in asked])
    slots_BT = np.arange(batch.mask_BT.shape[1]) + later_B1
    return batch._replace(
        teacher_tokens_BU=rows.tokens_BT,
        teacher_positions_BU=rows.positions_BT,
        teacher_segment_ids_BU=rows.segment_ids_BT,
        teacher_slots_BT=np.clip(slots_BT, 0, rows.tokens_BT.shape[1] - 1).astype(np.int32),
    )
