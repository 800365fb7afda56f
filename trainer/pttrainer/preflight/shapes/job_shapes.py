"""A job as shapes: everything that decides memory and time; nothing allocated, no data read, no jax.

Sizes, formats and layout come from the tables that training uses for its model, optimizer and mesh (`model_spec`,
`models.shapes`, `placement`, `logical_axes`), so the step is defined once. `compiler.abstract_inputs` makes the
compiler's input, with the functions that training calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ptapi import accelerators
from ptapi.accelerators import Slice
from ptapi.accelerators.roles import services_beside
from ptapi.accelerators.trainer_sampler_split import split_of
from ptapi.spec import Optimizer, PostTrainJobSpec, SelfTeacher
from ptapi.spec.model import MOST_CROPS
from pttrainer.losses.chunk_size import largest_chunk
from pttrainer.losses.loss_traits import by_token, of_tokens
from pttrainer.models import ModelConfig, ModelStructure
from pttrainer.models.config import AnyVision
from pttrainer.models.loading import model_spec
from pttrainer.models.lora.adapters import check_peft
from pttrainer.models.shapes.parameters import Weights, block_head, value_head
from pttrainer.models.weights.hf_names import Path
from pttrainer.preflight.shapes import device_bytes
from pttrainer.preflight.shapes.device_bytes import Share, Shares
from pttrainer.rollout.disaggregated import placement
from pttrainer.runtime.distributed import logical_axes
from pttrainer.train_step.optimizer import freeze_patterns, state_shapes

TEACHER_TOKENS = 64
"""Assumed teacher tokens per student token in offline data, which is not read."""


class Critic(NamedTuple):
    """A critic, or a reward model's head. width: of the hidden states that it reads; structure: of its own model."""

    width: int
    structure: ModelStructure | None
    has_bias: bool = True

    @property
    def weights(self) -> Weights:
        """Return the weights in the order of their names."""
        own = {} if self.structure is None else self.structure.trained_weights
        value = sorted(value_head(self.width, has_bias=self.has_bias).items())
        return {("model", *path): one for path, one in own.items()} | {("value", name): one for name, one in value}


@dataclass(frozen=True)
class JobShapes:
    """A job's shapes."""

    spec: PostTrainJobSpec
    slice: Slice
    structure: ModelStructure
    shape: logical_axes.Shape
    teacher: ModelStructure | None = None
    """Of distillation; of a student that teaches itself, the student."""
    critic: Critic | None = None
    reward_models: tuple[tuple[ModelStructure, int], ...] = ()
    """Of rewards, each with the completions that it scores at once."""
    sampler: logical_axes.Shape | None = None
    """Of the mesh that only samples; None where the mesh that trains does. `shape` is then of the other devices."""
    samplers: Slice | None = None
    """The chips of samplers with pods of their own; `sampler` is then the mesh of one of them, and None where they are
    not of the trainer's generation."""
    frozen: frozenset[Path] | None = None
    """Weights that `training.freeze` holds whole; None where it holds none."""
    whole: JobShapes | None = None
    """What this is a shallow form of, where it is one."""

    @property
    def config(self) -> ModelConfig:
        """Return the model's sizes."""
        return self.structure.config

    def axis(self, name: str) -> int:
        """Return the size of a mesh axis."""
        return self.shape[logical_axes.MESH_AXES.index(name)]

    @property
    def row_shards(self) -> int:
        """Return the number of devices that split the rows of a batch."""
        return math.prod(self.axis(name) for name in logical_axes.BATCH_AXES)

    @property
    def micro_rows(self) -> int:
        """Return rows of one forward and backward pass, over all devices."""
        training = self.spec.training
        return training.micro_batch_size or training.batch_size

    @property
    def has_micro_batches(self) -> bool:
        """Return True if a step has several passes, whose gradients are added up."""
        return self.micro_rows != self.spec.training.batch_size

    @property
    def tokens_per_device(self) -> int:
        """Return tokens of one forward and backward pass."""
        rows = self.micro_rows // self.row_shards
        return rows * self.spec.training.sequence_length // self.axis("sequence")

    @property
    def head_tokens_per_device(self) -> int:
        """Return tokens of one chunk that goes through the output head."""
        pieces = self.axis("sequence")
        rows, tokens = self.micro_rows * pieces, self.spec.training.sequence_length // pieces
        platform = self.slice.platform
        width = self.config.d_model if self.teacher is None and by_token(self.spec.algorithm) else 0
        size = largest_chunk(
            *(rows, tokens, self.config.vocab_size, self.devices, platform, width),
            sums_embedding=self.structure.sums_embedding,
        )
        return rows * size // (self.row_shards * pieces)

    @property
    def has_explicit_collectives(self) -> bool:
        """Return True if matrices are gathered, and rows of the embedding sent, as the step writes it out.

        The rule is that of `explicit_collectives.are_used`, without jax.
        """
        is_split = self.axis("fsdp") * self.axis("expert") > 1
        return is_split and logical_axes.gathers(device_bytes.sizes(self.shape), self.slice.platform)

    @property
    def devices(self) -> int:
        """Return the number of devices that train."""
        return math.prod(self.shape)

    @cached_property
    def training_slice(self) -> Slice:
        """Return the chips that train."""
        split = split_of(self.spec)
        return self.slice if split is None else split.trainer

    @cached_property
    def sampling_slice(self) -> Slice:
        """Return the chips that sample; with pods of their own those of one sampler."""
        split = split_of(self.spec)
        if self.samplers is not None:
            return replace(self.samplers, slices=1)
        return self.slice if split is None else split.sampler

    @property
    def sampler_count(self) -> int:
        """Return how many samplers share a rollout's prompts: 1 unless they have pods of their own."""
        return self.samplers.slices if self.samplers else 1

    @property
    def held_chips(self) -> int:
        """Return how many chips train and sample."""
        return self.slice.total_chips + (self.samplers.total_chips if self.samplers else 0)

    @property
    def service_chips(self) -> int:
        """Return how many chips serve models beside them."""
        services = (role.chips for role in services_beside(self.spec))
        return sum(chips.total_chips for chips in services if not chips.is_cpu)

    @cached_property
    def arguments(self) -> StepArguments:
        """Return what a device holds of the step's arguments."""
        return _step_arguments(self)


class StepArguments(NamedTuple):
    """Arguments of the train step.

    critic: its weights; of_critic: its optimizer's state; block: the head that proposes tokens, with its optimizer;
    entropy: the adaptive coefficient of a bonus on it, and what it follows; reference: one that follows the policy.
    """

    params: Shares
    optimizer: Shares
    critic: Shares
    of_critic: Shares
    frozen: Shares
    teacher: Shares
    batch: Shares
    block: Shares
    entropy: Shares
    reference: Shares

    @property
    def state(self) -> Shares:
        """Return what a step changes, including the counters of steps and of skipped ones."""
        counters: Shares = [(("step",), Share((), "int32")), (("skipped",), Share((2,), "int32"))]
        heads = [*self.critic, *self.of_critic, *self.block]
        return [*self.params, *self.optimizer, *counters, *heads, *self.entropy, *self.reference]

    @property
    def all(self) -> Shares:
        """Return every argument."""
        return [*self.state, *self.batch, *self.frozen, *self.teacher]


def shapes_of(spec: PostTrainJobSpec, config: ModelConfig | None = None, slice_: Slice | None = None) -> JobShapes:
    """Return the job's shapes; raise ConfigError if they do not go together.

    config: if known already. slice_: other devices than the spec names.
    """
    named = accelerators.resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    slice_ = slice_ or named
    training = spec.training
    config = config or read_config(spec)
    structure = model_spec.structure_of(config, training, slice_.platform)
    shape, sampler = placement.shapes(spec, structure, slice_.total_devices)
    samplers = placement.sampler_slices(spec)
    if samplers is not None and spec.rollout.sampling_engine == "native" and samplers.generation == slice_.generation:
        sampler = placement.separate_sampler(structure, spec, replace(samplers, slices=1), samplers.slices)
    patterns = freeze_patterns.patterns_of(training, config)
    frozen = freeze_patterns.fully_frozen(patterns, config) if patterns else None
    shapes = JobShapes(
        spec,
        slice_,
        structure,
        shape,
        _teacher(spec, structure),
        _critic(spec, structure),
        _reward_models(spec, structure),
        sampler,
        samplers,
        frozen,
    )
    logical_axes.check_batch(training.batch_size, training.micro_batch_size, shapes.row_shards)
    logical_axes.check_experts(shapes.axis("expert"), None if config.experts is None else config.experts.count)
    model_spec.check_routing(spec.rollout, config)
    if spec.export.format == "peft":
        check_peft(config, structure.adapters, "spec.export.format: peft")
    return shapes


def read_config(spec: PostTrainJobSpec) -> ModelConfig:
    """Return the model's sizes; raise ConfigError if they cannot be read."""
    model = spec.model
    source = model_spec.open_source(
        model.uri, "spec.model.uri", silent, model.revision, weights=False, images=model.images
    )
    return source.config if spec.algorithm.reward is None else model_spec.without_head(source.config)


def batch_arrays(spec: PostTrainJobSpec, rows: int | None = None) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and number format of a batch's arrays by name, as the job's algorithm lays it out.

    rows: of another size.
    """
    shape: tuple[int, ...] = (rows or spec.training.batch_size, spec.training.sequence_length)
    ids, numbers = (shape, "int32"), (shape, "float32")
    plain = dict.fromkeys(("tokens_BT", "targets_BT", "positions_BT", "segment_ids_BT"), ids)
    plain |= dict.fromkeys(("mask_BT", "weight_BT"), numbers)
    own = self_teacher(spec)
    if own is not None and own.privileged_context is not None:  # taken for as long as the student's rows
        read = ("teacher_tokens_BU", "teacher_positions_BU", "teacher_segment_ids_BU", "teacher_slots_BT")
        plain |= dict.fromkeys(read, ids)
    if has_teacher_logprobs(spec):
        there = (*shape, teacher_tokens(spec))
        return {**plain, "teacher_ids_BTK": (there, "int32"), "teacher_logps_BTK": (there, "float32")}
    return plain | dict.fromkeys(of_tokens(spec.algorithm), numbers)


def route_arrays(
    spec: PostTrainJobSpec, config: ModelConfig, rows: int | None = None
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the same of the experts of a batch's tokens; nothing where they are not replayed."""
    if config.experts is None or not spec.rollout.routing_replay:
        return {}
    tokens = rows or spec.training.batch_size, spec.training.sequence_length
    shape = *tokens, len(config.expert_layers), config.experts.per_token
    return {"routes_BTLk": (shape, config.experts.number_dtype)}


def image_arrays(
    spec: PostTrainJobSpec, vision: AnyVision | None, rows: int | None = None
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the same of the images of a batch, one for each row; nothing without a vision tower."""
    if vision is None:
        return {}
    count = rows or spec.training.batch_size
    pixels = (count, images_each(spec), *vision.pixels_shape(spec.training.sequence_length)), "float32"
    return {"pixels_BMSSC": pixels, "slots_BT": ((count, spec.training.sequence_length), "int32")}


def images_each(spec: PostTrainJobSpec) -> int:
    """Return the arrays of pixels of a row with one image, which may come with crops."""
    return 1 + MOST_CROPS if spec.model.pan_and_scan else 1


def has_teacher_logprobs(spec: PostTrainJobSpec) -> bool:
    """Return True if a batch holds a teacher's log-probs: from the data, or from a service."""
    return spec.algorithm.distill is not None and spec.algorithm.distill.has_teacher_logprobs


def teacher_tokens(spec: PostTrainJobSpec) -> int:
    """Return how many of the teacher's tokens a batch holds for each of the student's."""
    assert spec.algorithm.distill is not None
    return spec.algorithm.distill.top_k or TEACHER_TOKENS  # offline it is 0: the data say how many


def self_teacher(spec: PostTrainJobSpec) -> SelfTeacher | None:
    """Return how a student teaches itself, if it does."""
    sdpo = spec.algorithm.sdpo
    if sdpo is not None:
        if sdpo.distillation_weight == 0.0:
            return None
        return SelfTeacher(weights=sdpo.teacher, privileged_context=sdpo.solution_context)
    return None if spec.algorithm.distill is None else spec.algorithm.distill.self_teacher


def silent(line: str) -> None:
    """Discard the line."""
    del line


def _step_arguments(of: JobShapes) -> StepArguments:
    training, mesh, platform = of.spec.training, device_bytes.sizes(of.shape), of.slice.platform
    trained, critic = of.structure.trained_weights, {} if of.critic is None else of.critic.weights
    optimizer_state = state_shapes.state(training.optimizer, trained, of.frozen, average=training.ema is not None)
    of_critic = state_shapes.state(training.optimizer, critic) if critic else []
    params = device_bytes.of_weights(trained.items(), mesh, platform)
    return StepArguments(
        params,
        device_bytes.of_weights(optimizer_state, mesh, platform),
        device_bytes.of_weights(critic.items(), mesh, platform),
        device_bytes.of_weights(of_critic, mesh, platform),
        device_bytes.of_weights(of.structure.frozen_weights.items(), mesh, platform),
        _of_teacher(of, params),
        device_bytes.of_batch(
            batch_arrays(of.spec) | route_arrays(of.spec, of.config) | image_arrays(of.spec, of.config.vision), mesh
        ),
        _of_block(of, mesh),
        _of_entropy(of),
        params if of.spec.algorithm.has_moving_reference else [],
    )


def block_weights(of: JobShapes) -> Weights:
    """Return the weights of the head that proposes tokens; none without one."""
    speculative = of.spec.rollout.speculative
    if speculative is None or speculative.block is None:
        return {}
    return {(name,): one for name, one in block_head(speculative.block.tokens, of.config.d_model).items()}


def _of_block(of: JobShapes, mesh: Mapping[str, int]) -> Shares:
    weights = block_weights(of)
    if not weights:
        return []
    held = [*weights.items(), *state_shapes.state(Optimizer(), weights)]
    return list(device_bytes.of_weights(held, mesh, of.slice.platform))


def _of_entropy(of: JobShapes) -> Shares:
    grpo = of.spec.algorithm.grpo
    if grpo is None or grpo.entropy_bonus is None or grpo.entropy_bonus.adaptive is None:
        return []
    return [((name,), Share((), "float32")) for name in ("coefficient", "last")]


def _of_teacher(of: JobShapes, params: Shares) -> Shares:
    """Return weights that only teach."""
    own = self_teacher(of.spec)
    if own is not None:  # a second copy of what is trained, unless it is its average or itself
        return params if own.weights == "initial" else []
    if of.teacher is None:
        return []
    mesh = device_bytes.sizes(of.shape)
    return list(device_bytes.of_weights(of.teacher.weights.items(), mesh, of.slice.platform))


def _teacher(spec: PostTrainJobSpec, structure: ModelStructure) -> ModelStructure | None:
    if self_teacher(spec) is not None:
        return structure
    distilled = spec.algorithm.distill
    if distilled is None or distilled.teacher is None or distilled.teacher.uri is None:
        return None
    uri, field = distilled.teacher.uri, "spec.algorithm.distill.teacher.uri"
    source = model_spec.open_source(uri, field, silent, distilled.teacher.revision, weights=False)
    return model_spec.auxiliary_structure(source.config, structure)


def _reward_models(spec: PostTrainJobSpec, structure: ModelStructure) -> tuple[tuple[ModelStructure, int], ...]:
    models = []
    for index, reward in enumerate(spec.rewards):
        if reward.model is not None:
            uri, field = reward.model.uri, f"spec.rewards[{index}].model.uri"
            source = model_spec.open_source(uri, field, silent, reward.model.revision, weights=False)
            config = model_spec.without_head(source.config)
            models.append((model_spec.auxiliary_structure(config, structure), reward.model.batch_size))
    return tuple(models)


def _critic(spec: PostTrainJobSpec, structure: ModelStructure) -> Critic | None:
    if spec.algorithm.reward is not None:
        return Critic(structure.config.d_model, None, has_bias=False)
    if spec.algorithm.ppo is None:
        return None
    own, _ = model_spec.critic_of(spec.algorithm.ppo, structure, silent, weights=False)
    return Critic((own or structure).config.d_model, own)
