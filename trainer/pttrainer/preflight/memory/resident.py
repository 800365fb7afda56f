"""Memory on a device besides the compiled train step, which the compiler cannot see. We add it, and show it.

With reinforcement learning the two halves of a step alternate on the same chips: a rollout holds the training state
(including moments), the weights again in the compute format, and the cache of keys and values; the update holds the
state and its own temporaries. A reference model and a draft model stay through both. If a rollout's programs were
compiled, the compiler's numbers count, and only the memory outside them is added. If other devices sample
(`rollout.disaggregated.placement`), they hold all of a rollout and nothing of training.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ptapi.spec import Vllm
from pttrainer.models import ModelConfig, ModelStructure
from pttrainer.models.shapes import flops
from pttrainer.models.shapes.parameters import ITEM_BYTES, ParamSpec
from pttrainer.preflight.memory.tower_activations import TowerPass
from pttrainer.preflight.shapes import device_bytes, rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, block_weights, images_each
from pttrainer.preflight.shapes.rollout_shapes import Plan
from pttrainer.rollout.disaggregated import placement
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.sizes import sampling_time

ROLLOUT_WEIGHTS, DRAFT, UNDER_WAY = "rollout weights", "draft weights", "weights in transfer"
GATHERED = "weights gathered for samplers"
KEPT, BLOCK = "kept prompts", "head that proposes tokens"
GROWING = "the smaller cache while it grows"


@dataclass(frozen=True)
class Buffer:
    """A resident buffer.

    during: `train`, `rollout` or `always`; bytes are per device. what: its arrays on a device, if one shape
    describes them.
    """

    name: str
    bytes: int
    during: str
    what: str = ""

    @property
    def label(self) -> str:
        """Return its name for people."""
        return f"{self.name} ({self.what})" if self.what else self.name


def resident_buffers(of: JobShapes) -> list[Buffer]:
    """Return buffers outside the train step, largest first."""
    if rollout_shapes.has_rollouts(of) and rollout_shapes.is_elsewhere(of):
        return [*_reference(of), *_reward_models(of), *_gathered(of)]
    if of.spec.rollout.vllm is not None and rollout_shapes.has_rollouts(of):
        return [*_reference(of), *_reward_models(of), *_vllm(of, of.spec.rollout.vllm)]
    if not rollout_shapes.samples_rollouts(of):
        return []
    there = rollout_shapes.sampler(of)
    plan = rollout_shapes.plan_of(there)
    weights = sampling_time.weights_bytes(of.structure, there.shape)
    split = f"tensor {there.axis('tensor')}" if there.shape != of.shape else ""
    held = Buffer(ROLLOUT_WEIGHTS, placement.copies(of.spec) * weights, "rollout", split)
    buffers = [*_reference(of), *_reward_models(of), held, *_under_way(of), *_gathered(of)]
    buffers += [*_cache(there, plan), _working(there, plan)]
    if kept := rollout_shapes.kept_bytes(there, plan):
        buffers.append(Buffer(KEPT, kept, "rollout"))
    if block := block_weights(of):
        copied = sum(one.size for one in block.values()) * ITEM_BYTES[of.structure.compute_dtype]
        buffers.append(Buffer(BLOCK, copied, "rollout"))
    draft = rollout_shapes.draft_of(of)
    if draft is not None:
        drafted = sampling_time.weights_bytes(draft, there.shape)
        during = "always" if of.sampler is None else "rollout"
        buffers += [Buffer(DRAFT, drafted, during), _draft_cache(there, plan, draft)]
    return sorted(buffers, key=lambda buffer: -buffer.bytes)


def total(buffers: Iterable[Buffer]) -> int:
    """Return the bytes of buffers together."""
    return sum(buffer.bytes for buffer in buffers)


def during(buffers: Iterable[Buffer], phase: str) -> list[Buffer]:
    """Return the buffers that are there besides the program in this phase."""
    return [buffer for buffer in buffers if buffer.during in (phase, "always")]


def training_state(of: JobShapes) -> Buffer:
    """Return training's state that stays while completions are sampled."""
    held = [*of.arguments.state, *of.arguments.frozen, *of.arguments.teacher]
    return Buffer("training state", device_bytes.total(held), "always")


def rollout_buffers(of: JobShapes, buffers: list[Buffer]) -> list[Buffer]:
    """Return the buffers of a device while completions are sampled, by the formula; none if none are."""
    sampled = [buffer for buffer in buffers if buffer.during == "rollout"]
    return [training_state(of), *during(buffers, "rollout")] if sampled and of.sampler is None else sampled


def _under_way(of: JobShapes) -> list[Buffer]:
    """Return the largest chunk of weights in transfer to other devices.

    In the parts that it arrives in and gathered from them, before it joins those that stay. Where devices then hold
    parts of matrices, what arrived is there once more, in another order.
    """
    if of.sampler is None:
        return []
    chunk = _largest_chunk(of)
    ways, tensor = math.gcd(of.devices, math.prod(of.sampler)), replace(of, shape=of.sampler).axis("tensor")
    return [Buffer(UNDER_WAY, (1 + (tensor > 1)) * (chunk // ways) + chunk // tensor, "rollout")]


def _gathered(of: JobShapes) -> list[Buffer]:
    """Return the largest chunk of weights that processes gather on every device, for samplers with pods of their own.

    Where one process trains, it reads each device's part. For vLLM one array is gathered after the other, as trained.
    """
    processes = of.slice.total_vms * of.slice.parallel_containers
    if of.samplers is None or processes == 1:
        return []
    if of.spec.rollout.vllm is None:
        return [Buffer(GATHERED, _largest_chunk(of), "train")]
    if of.structure.adapters is not None:
        return []
    stored = max(one.bytes // one.size for one in of.structure.weights.values())
    return [Buffer(GATHERED, stored * max(one.size for one in _decoding_arrays(of)), "train")]


def _largest_chunk(of: JobShapes) -> int:
    largest = max(one.bytes for one in _decoding_arrays(of))
    return max(largest, min(buckets.CHUNK_BYTES, of.structure.decoding_bytes))


def _decoding_arrays(of: JobShapes) -> list[ParamSpec]:
    """Return the arrays of the sampler's format: a layer's apart."""
    parts = [part for _, part in of.structure.decoding_layers]
    return [one for part in [*parts, of.structure.decoding_tables] for one in part.values()]


def _reference(of: JobShapes) -> list[Buffer]:
    """Return a second copy of the trained weights; frozen ones are shared. One that moves is in the train state."""
    if of.spec.algorithm.reference_coefficient == 0 or of.spec.algorithm.has_moving_reference:
        return []
    return [Buffer("reference weights", device_bytes.total(of.arguments.params), "always")]


def _reward_models(of: JobShapes) -> list[Buffer]:
    """Return the weights of reward models, and what the largest of their passes keeps of a layer."""
    mesh = device_bytes.sizes(of.shape)
    weights = [
        device_bytes.total(device_bytes.of_weights(model.weights.items(), mesh, of.slice.platform))
        for model, _ in of.reward_models
    ]
    tokens = of.spec.training.sequence_length
    passes = [
        4
        * math.ceil(rows / of.row_shards)
        * tokens
        * (4 * model.config.d_model + 3 * model.config.d_ff // of.axis("tensor"))
        for model, rows in of.reward_models
    ]
    held = [Buffer("reward model", size, "always") for size in weights]
    return [*held, Buffer("a reward model's pass", max(passes), "rollout")] if held else []


def _vllm(of: JobShapes, vllm: Vllm) -> list[Buffer]:
    """Return vLLM's share if it runs in the trainer's process; a server has devices of its own."""
    if vllm.endpoint is not None:
        return []
    share = vllm.memory_share or buckets.VLLM_SHARE
    return [Buffer("vLLM", int(tpu_topology.usable_bytes(of.slice) * share), "always")]


def _cache(of: JobShapes, plan: Plan) -> list[Buffer]:
    """Return keys and values of the rows sampled at once and of their prompts; if refilled, the next prompts, too."""
    pool = rollout_shapes.cache_bytes(of, plan.pool, plan.prompt_slots) if plan.is_refilled else 0
    own = rollout_shapes.rows_bytes(of, plan.rows, plan.slots)
    slots = f"{_sizes(of.config)}, {plan.slots} slots of {plan.rows} rows"
    return [
        Buffer("cache of keys and values", own, "rollout", f"{slots} over {of.row_shards} devices"),
        Buffer("cache of prompts", rollout_shapes.prompts_bytes(of, plan) + pool, "rollout"),
    ]


def _sizes(config: ModelConfig) -> str:
    """Return how many arrays of which sizes the layers store of each token."""
    layers: Counter[tuple[int, int, int]] = Counter()
    for group in config.groups:
        layers[group.config.cached] += group.config.layers
    return " and ".join(
        f"{2 * count} x {heads} heads x {of_key}" if of_value else f"{count} x {of_key}"
        for (heads, of_key, of_value), count in layers.items()
        if heads
    )


def _draft_cache(of: JobShapes, plan: Plan, draft: ModelStructure) -> Buffer:
    """Return the draft's keys and values, including prompts, in proportion to the model's."""
    own = rollout_shapes.rows_bytes(of, plan.rows, plan.slots) + rollout_shapes.prompts_bytes(of, plan)
    size = own * buckets.token_bytes(draft) // buckets.token_bytes(of.structure)
    return Buffer("cache of the draft", size, "rollout")


def _working(of: JobShapes, plan: Plan) -> Buffer:
    """Return the largest of the transient buffers.

    The prompts' scores and activations, those of their images, the logits of one token as computed and as sampled from,
    the smaller cache while it grows.
    """
    config, tensor = of.config, of.axis("tensor")
    here = math.ceil(plan.pool / of.row_shards)
    tokens = here * plan.prompt_slots // plan.pieces
    scores = 0 if plan.whole else 4 * config.heads * tokens * plan.prompt_slots // tensor  # a kernel holds none
    gathered = 0
    if plan.is_gathered:  # of a layer, and of the next on its way
        tokens //= tensor
        gathered = 2 * ITEM_BYTES[of.structure.compute_dtype] * flops.stack_weights(config) // config.layers
    each = {
        "prompts: scores and activations": scores + gathered + 4 * tokens * max(config.d_ff, config.d_model),
        "prompts: a layer of the vision tower": _of_images(of, plan, here),
        "logits of one token": 2
        * 4
        * math.ceil(plan.rows / of.row_shards)
        * max(plan.ahead, 1)
        * config.vocab_size
        // tensor,
        "the smaller cache while it grows": rollout_shapes.rows_bytes(of, plan.rows, plan.slots // 2),
    }
    name = max(each, key=lambda name: each[name])
    return Buffer(name, each[name], "rollout")


def _of_images(of: JobShapes, plan: Plan, prompts: int) -> int:
    """Return the bytes of a layer of the vision tower, of an image and its crops for each prompt, and of pixels."""
    vision = of.config.vision
    if vision is None:
        return 0
    images = prompts * images_each(of.spec)
    pixels = ITEM_BYTES["float32"] * images * math.prod(vision.pixels_shape(plan.prompt_tokens))
    numbers = ITEM_BYTES[of.structure.compute_dtype]
    return pixels + sum(TowerPass(vision, images, plan.prompt_tokens, numbers, of.slice).forward())
