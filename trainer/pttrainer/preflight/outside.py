"""What lives on a device beside the compiled train step, which the compiler cannot see. We add it, and show it.

With reinforcement learning the two halves of a step take turns on the same chips: a rollout holds the training state
(moments included), the weights once more in the compute format, and the cache of keys and values; the update holds the
state and its own temporaries. A reference model and a draft model stay through both. Rollout sizes are computed, not
compiled. Where other devices sample (`rollout.placement`), they hold all of a rollout and nothing of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax

from ptapi.spec import Vllm
from pttrainer import placement, sharding
from pttrainer.models import Model
from pttrainer.preflight import chips
from pttrainer.preflight.subject import Subject, bytes_per_device, placed
from pttrainer.rollout import guessing, native, sizes
from pttrainer.rollout.transfer import CHUNK_BYTES
from pttrainer.rollout.vllm import inprocess


@dataclass(frozen=True)
class Buffer:
    """Something resident. during: `train`, `rollout` or `always`; bytes are per device."""

    name: str
    bytes: int
    during: str


def outside(of: Subject) -> list[Buffer]:
    """Buffers of no train step, largest first."""
    algorithm = of.spec.algorithm
    if not algorithm.learns_from_rewards and (algorithm.distill is None or algorithm.distill.mode != "on-policy"):
        return []
    if of.spec.rollout.vllm is not None:
        return [*_reference(of), *_vllm(of, of.spec.rollout.vllm)]
    draft = _draft(of)
    found = [*_reference(of), *_weights(of), *_cache(of, draft), _logits(of)]
    if draft is not None:
        during = "always" if of.sampler is None else "rollout"
        found.append(Buffer("draft weights", _decoding_bytes(of, draft), during))
    return sorted(found, key=lambda buffer: -buffer.bytes)


def resident(buffers: list[Buffer], phase: str) -> int:
    """Bytes beside the program in this phase."""
    return sum(buffer.bytes for buffer in buffers if buffer.during in (phase, "always"))


def rollout_peak(of: Subject, buffers: list[Buffer]) -> int:
    """Bytes per device while completions are sampled; 0 where none are."""
    if not any(buffer.during == "rollout" for buffer in buffers):
        return 0
    if of.sampler is not None:
        return sum(buffer.bytes for buffer in buffers if buffer.during == "rollout")
    held = of.held
    return bytes_per_device((held.state, held.frozen, held.teacher)) + resident(buffers, "rollout")


def _reference(of: Subject) -> list[Buffer]:
    """A second copy of what is trained; what is frozen is shared."""
    if of.spec.algorithm.reference_coefficient == 0:
        return []
    state = of.held.state
    return [Buffer("reference weights", bytes_per_device(state.params), "always")]


def _vllm(of: Subject, vllm: Vllm) -> list[Buffer]:
    """In the trainer's process it takes its share once and for all; a server has devices of its own."""
    if vllm.endpoint is not None:
        return []
    share = vllm.memory_share or inprocess.MEMORY_SHARE
    return [Buffer("vLLM", int(chips.usable_bytes(of.slice) * share), "always")]


def _weights(of: Subject) -> list[Buffer]:
    """In every version that is held at once, and what of the next one is under way."""
    held = Buffer("rollout weights", placement.copies(of.spec) * _decoding_bytes(of, of.model), "rollout")
    if of.sampler is None:
        return [held]
    return [held, Buffer("weights under way", CHUNK_BYTES // math.gcd(of.devices, math.prod(of.sampler)), "rollout")]


def _decoding_bytes(of: Subject, model: Model) -> int:
    """Weights as decoding wants them."""
    shapes = native.decoding_shapes(model)
    where = native.decoding_shardings(model, of.sampler_mesh)  # type: ignore[arg-type]  # makes the same shardings
    return bytes_per_device(jax.tree.map(placed, shapes, where))


def _draft(of: Subject) -> Model | None:
    """The model that guesses, if one does."""
    speculative = of.spec.rollout.speculative
    if speculative is None or speculative.draft is None:
        return None
    return guessing.draft_model(speculative.draft, of.model, _silent, weights=False)[1]


def _cache(of: Subject, draft: Model | None) -> list[Buffer]:
    """Keys and values of the rows that are sampled at once, a draft's too, and the old half while the cache is made
    larger."""
    rollout, length = of.spec.rollout, of.spec.training.sequence_length
    per_token = sizes.token_bytes(of.model) + (0 if draft is None else sizes.token_bytes(draft))
    mesh = of.sampler_mesh
    budget = int(chips.usable_bytes(of.slice) * sizes.CACHE_SHARE) * mesh.size
    most = rollout.slots or sizes.ROWS_ON_DEVICE * mesh.size
    rows = min(of.spec.training.batch_size, most, max(1, budget // (per_token * length)))
    slots = sizes.slots_for(rollout.max_new_tokens + guessing.ahead(of.spec))
    prompt = max(length - rollout.max_new_tokens, 1)
    heads = of.config.kv_heads if draft is None else math.gcd(of.config.kv_heads, draft.config.kv_heads)
    spread = sharding.mesh_size(mesh, "batch") * math.gcd(mesh.shape["tensor"], heads)
    per_device = math.ceil(rows / spread) * per_token
    return [
        Buffer("cache of keys and values", per_device * (slots + prompt), "rollout"),
        Buffer("the smaller cache while it grows", per_device * (slots // 2), "rollout"),
    ]


def _logits(of: Subject) -> Buffer:
    """Of one token of every row, or of all that are guessed at once, twice: as computed and as sampled from."""
    mesh, at_once = of.sampler_mesh, max(guessing.ahead(of.spec), 1)
    rows = math.ceil(of.spec.training.batch_size / sharding.mesh_size(mesh, "batch")) * at_once
    return Buffer("logits of one token", 2 * 4 * rows * of.config.vocab_size // mesh.shape["tensor"], "rollout")


def _silent(line: str) -> None:
    del line
