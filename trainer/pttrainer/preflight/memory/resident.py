"""What lives on a device beside the compiled train step, which the compiler cannot see. We add it, and show it.

With reinforcement learning the two halves of a step take turns on the same chips: a rollout holds the training state
(moments included), the weights once more in the compute format, and the cache of keys and values; the update holds the
state and its own temporaries. A reference model and a draft model stay through both. Where a rollout's programs were
compiled, what they hold is the compiler's word, and only what stands beside them is added. Where other devices sample
(`rollout.placement`), they hold all of a rollout and nothing of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ptapi.spec import Vllm
from pttrainer.models import Form
from pttrainer.preflight.shapes import device_bytes, rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import Subject
from pttrainer.preflight.shapes.rollout_shapes import Plan
from pttrainer.rollout.disaggregated import placement
from pttrainer.rollout.native import buckets

DRAFT, UNDER_WAY = "draft weights", "weights under way"


@dataclass(frozen=True)
class Buffer:
    """Something resident. during: `train`, `rollout` or `always`; bytes are per device. what: its arrays, if they have
    one shape that says something: on a device."""

    name: str
    bytes: int
    during: str
    what: str = ""

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.name} ({self.what})" if self.what else self.name


def outside(of: Subject) -> list[Buffer]:
    """Buffers of no train step, largest first."""
    if of.spec.rollout.vllm is not None and rollout_shapes.has_rollouts(of):
        return [*_reference(of), *_vllm(of, of.spec.rollout.vllm)]
    if not rollout_shapes.samples_rollouts(of):
        return []
    there = rollout_shapes.sampler(of)
    plan = rollout_shapes.plan_of(there)
    weights = rollout_shapes.weights_bytes(of.form, there.shape)
    split = f"tensor {there.axis('tensor')}" if there.shape != of.shape else ""
    held = Buffer("rollout weights", placement.copies(of.spec) * weights, "rollout", split)
    found = [*_reference(of), held, *_under_way(of), *_cache(there, plan), _working(there, plan)]
    draft = rollout_shapes.draft_of(of)
    if draft is not None:
        drafted = rollout_shapes.weights_bytes(draft, there.shape)
        during = "always" if of.sampler is None else "rollout"
        found += [Buffer(DRAFT, drafted, during), _draft_cache(there, plan, draft)]
    return sorted(found, key=lambda buffer: -buffer.bytes)


def resident(buffers: list[Buffer], phase: str) -> int:
    """Bytes beside the program in this phase."""
    return sum(buffer.bytes for buffer in buffers if buffer.during in (phase, "always"))


def state(of: Subject) -> int:
    """Bytes of training's own that stay while completions are sampled."""
    return device_bytes.total([*of.held.state, *of.held.frozen, *of.held.teacher])


def rollout_peak(of: Subject, buffers: list[Buffer]) -> int:
    """Bytes per device while completions are sampled, computed; 0 where none are."""
    if not any(buffer.during == "rollout" for buffer in buffers):
        return 0
    if of.sampler is not None:
        return sum(buffer.bytes for buffer in buffers if buffer.during == "rollout")
    return state(of) + resident(buffers, "rollout")


def _under_way(of: Subject) -> list[Buffer]:
    """What of the next weights is on its way to other devices: the largest chunk, in the parts that it comes in and as
    it is gathered from them, before it lies among those that stay."""
    if of.sampler is None:
        return []
    largest = max(one.bytes for part in (of.form.decoding_layer, of.form.decoding_tables) for one in part.values())
    chunk = max(largest, min(buckets.CHUNK_BYTES, of.form.decoding_bytes))
    ways, tensor = math.gcd(of.devices, math.prod(of.sampler)), replace(of, shape=of.sampler).axis("tensor")
    return [Buffer(UNDER_WAY, chunk // ways + chunk // tensor, "rollout")]


def _reference(of: Subject) -> list[Buffer]:
    """A second copy of what is trained; what is frozen is shared."""
    if of.spec.algorithm.reference_coefficient == 0:
        return []
    return [Buffer("reference weights", device_bytes.total(of.held.params), "always")]


def _vllm(of: Subject, vllm: Vllm) -> list[Buffer]:
    """In the trainer's process it takes its share once and for all; a server has devices of its own."""
    if vllm.endpoint is not None:
        return []
    share = vllm.memory_share or buckets.VLLM_SHARE
    return [Buffer("vLLM", int(tpu_topology.usable_bytes(of.slice) * share), "always")]


def _cache(of: Subject, plan: Plan) -> list[Buffer]:
    """Keys and values of the rows that are sampled at once and of their prompts; refilled, the next prompts, too."""
    pool = rollout_shapes.cache_bytes(of, plan.pool, plan.prompt_slots) if plan.is_refilled else 0
    own = rollout_shapes.rows_bytes(of, plan.rows, plan.slots)
    config = of.config
    slots = f"{2 * config.layers} x {config.kv_heads} heads x {config.head_dim}, {plan.slots} slots of {plan.rows} rows"
    return [
        Buffer("cache of keys and values", own, "rollout", f"{slots} over {of.row_shards} devices"),
        Buffer("cache of prompts", rollout_shapes.prompts_bytes(of, plan) + pool, "rollout"),
    ]


def _draft_cache(of: Subject, plan: Plan, draft: Form) -> Buffer:
    """Its keys and values, of prompts too, in proportion to the model's."""
    own = rollout_shapes.rows_bytes(of, plan.rows, plan.slots) + rollout_shapes.prompts_bytes(of, plan)
    size = own * buckets.token_bytes(draft) // buckets.token_bytes(of.form)
    return Buffer("cache of the draft", size, "rollout")


def _working(of: Subject, plan: Plan) -> Buffer:
    """The largest of what is there one after the other: the prompts' scores and activations, the logits of one token as
    computed and as sampled from, the smaller cache while it is made larger."""
    config, tensor = of.config, of.axis("tensor")
    here = math.ceil(plan.pool / of.row_shards)
    piece = plan.prompt_slots // plan.pieces
    scores = 4 * here * config.heads * piece * plan.prompt_slots // tensor
    each = {
        "prompts: scores and activations": scores + 4 * here * piece * max(config.d_ff, config.d_model),
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
