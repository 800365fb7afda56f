"""How a job samples completions: how many rows at once, with which cache, on which mesh. No jax.

`rollout_programs` lowers the engine's programs from it. Left out: other engines than the native one; evaluation.
"""

import math
from dataclasses import dataclass, replace

from ptapi.accelerators import Slice
from ptapi.spec import PostTrainJobSpec
from pttrainer.models import ModelStructure
from pttrainer.models.loading.model_spec import draft_of as draft_form
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, silent
from pttrainer.preflight.shapes.local_devices import LocalDevices
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.sizes import sampler_shape, sampling_time
from pttrainer.runtime.tpu_tiles import LANES


@dataclass(frozen=True)
class Plan:
    """How the engine samples a step's completions.

    rows: completions at once; prompts: of the rollout; pool: of them computed at once; slots, prompt_slots: of the
    cache for a completion and for a prompt, at most.
    """

    completions: int
    samples: int
    rows: int
    pool: int
    prompt_tokens: int
    new_tokens: int
    ahead: int = 0
    """Tokens that are guessed at once."""
    has_images: bool = False
    """Whether prompts have images, one each: they are computed whole, all at once."""
    whole: int = 0
    """How many whole prompts are computed at once; 0 if all are, piece by piece."""
    is_gathered: bool = False
    """Whether the devices of `tensor` divide whole prompts and gather the matrices."""

    @property
    def is_refilled(self) -> bool:
        """Return True if finished rows take over other samples."""
        return self.rows < self.completions

    @property
    def prompts(self) -> int:
        """Return the number of prompts of a rollout."""
        return self.completions // self.samples

    @property
    def slots(self) -> int:
        """Return the slots of a completion's cache, at most."""
        return buckets.slots_for(self.new_tokens + self.ahead)

    @property
    def prompt_slots(self) -> int:
        """Return the slots of a prompt's cache, at most."""
        return buckets.slots_for(self.prompt_tokens)

    @property
    def pieces(self) -> int:
        """Return the number of pieces in which prompts are computed one after the other."""
        if self.has_images:
            return 1
        if self.whole:
            return self.pool // self.whole
        return self.prompt_slots // buckets.prefill_piece(self.pool, self.prompt_slots)

    @property
    def tokens(self) -> int:
        """Return the sequential tokens in all, if every completion has maximal length."""
        return -(-self.completions // self.rows) * self.new_tokens


def samples_rollouts(of: JobShapes) -> bool:
    """Return True if the native engine samples completions on chips whose mesh is known."""
    return has_rollouts(of) and of.spec.rollout.vllm is None and not is_elsewhere(of)


def is_elsewhere(of: JobShapes) -> bool:
    """Return True if samplers sample that are not checked: of other chips than the trainer's, or with vLLM."""
    return of.samplers is not None and of.sampler is None


def has_rollouts(of: JobShapes) -> bool:
    """Return True if it learns from completions of its own."""
    return of.spec.algorithm.is_on_policy


def sampler(of: JobShapes) -> JobShapes:
    """Return the job on the mesh that samples.

    It is that of other devices, or one of the same, which may split matrices further than the one that trains.
    """
    if of.sampler is not None:
        return replace(of, shape=of.sampler)
    memory: int | None = tpu_topology.usable_bytes(of.slice)
    chips: Slice | None = of.slice
    rollout = sampling_time.rollout_of(of.spec)
    if isinstance(of.slice, LocalDevices):
        chips = sampler_shape.chips_of(of.spec, of.slice.platform, of.slice.total_devices)
        memory = memory if of.slice.platform != "cpu" else None
    return replace(of, shape=sampler_shape.sampler_shape(_deep(of).structure, of.shape, memory, chips, rollout))


def _deep(of: JobShapes) -> JobShapes:
    """Return the job with all of its layers, which decides the number of rows and shards."""
    return of.whole or of


def plan_of(of: JobShapes) -> Plan:
    """Return the engine's plan: prompts fill what completions leave of a row. Here and below, of the `sampler`."""
    rollout, length = of.spec.rollout, of.spec.training.sequence_length
    samples = of.spec.algorithm.samples_per_prompt
    completions = sampling_time.completions_of(of.spec, of.sampler_count)
    cache = int(tpu_topology.usable_bytes(of.slice) * buckets.CACHE_SHARE)
    guessed, draft = ahead(of.spec), draft_of(of)
    each = sum(
        buckets.token_bytes(structure, filled=_is_tpu(of))
        for structure in (_deep(of).structure, draft)
        if structure is not None
    )
    of_states = buckets.state_bytes(_deep(of).structure)
    most = rollout.slots or buckets.rows_within(each * (length + guessed) + of_states, math.prod(of.shape), cache)
    shards, tensor = of.row_shards, of.axis("tensor")
    rows, pool = buckets.rows_and_prompts(_deep(of).structure, completions, samples, most, shards, tensor)
    prompt = max(length - rollout.max_new_tokens, 1)
    has_images = of.config.vision is not None
    whole = _whole_prompts(of, pool, buckets.slots_for(prompt))
    return Plan(completions, samples, rows, pool, prompt, rollout.max_new_tokens, guessed, has_images, *whole)


def _whole_prompts(of: JobShapes, prompts: int, slots: int) -> tuple[int, bool]:
    """Return how many whole prompts are computed at once, or 0; and whether matrices are gathered for them.

    Follows `native.prefill` and, for a TPU, `flash_kernels.choose_kernel`.
    """
    config, tensor = of.config, of.axis("tensor")
    if not _is_tpu(of) or not config.is_pageable or of.axis("sequence") > 1:
        return 0, False
    has_images = config.vision is not None
    gathered = 0 if has_images else buckets.gathered_prompts(of.structure, prompts, slots, of.row_shards, tensor)
    repeats = tensor // math.gcd(config.kv_heads, tensor)
    is_even = config.heads % tensor == 0 and config.heads % (config.kv_heads * repeats) == 0
    summed = buckets.whole_prompts(prompts, slots, of.row_shards) if is_even else 0
    return gathered or summed, gathered > 0


def ahead(spec: PostTrainJobSpec) -> int:
    """Return tokens that are guessed for each pass; 0 without speculation."""
    settings = spec.rollout.speculative
    one = None if settings is None else settings.ngram or settings.draft or settings.block
    return 0 if one is None else one.tokens


def draft_of(of: JobShapes) -> ModelStructure | None:
    """Return the model that guesses tokens, if one does."""
    settings = of.spec.rollout.speculative
    if settings is None or settings.draft is None:
        return None
    return draft_form(settings.draft, of.structure, silent, weights=False)[1]


def cache_bytes(of: JobShapes, rows: int, slots: int, *, filled: bool = False) -> int:
    """Return bytes of a device's keys and values.

    Rows and key heads are split if all parts are equal (`cache_layout`). filled: padded like in pages.
    """
    tensor = of.axis("tensor")
    here = rows // of.row_shards if rows % of.row_shards == 0 else rows
    spread = rows % (of.row_shards * tensor) == 0
    of_slots = slots * buckets.token_bytes(of.structure, filled=filled, tensor=tensor, spread=spread)
    return here * (of_slots + buckets.state_bytes(of.structure))


def kept_bytes(of: JobShapes, plan: Plan) -> int:
    """Return bytes of a device's pages of kept prompts (`native.prefix_reuse`), which episodes have."""
    if of.spec.environment is None:
        return 0
    whole, filled = _deep(of).structure, _is_tpu(of)
    memory = int(tpu_topology.usable_bytes(of.slice) * buckets.KEPT_SHARE) * math.prod(of.shape)
    fitting = memory // buckets.page_bytes(whole, filled=filled)
    pages = buckets.kept_pages(plan.completions, of.spec.training.sequence_length, fitting)
    return math.ceil(pages / of.row_shards) * buckets.page_bytes(of.structure, filled=filled, tensor=of.axis("tensor"))


def rows_bytes(of: JobShapes, rows: int, slots: int) -> int:
    """Return bytes of the rows that are sampled."""
    return cache_bytes(of, rows, slots, filled=is_paged(of, rows))


def prompts_bytes(of: JobShapes, plan: Plan) -> int:
    """Return bytes of the prompts: one copy for all samples of a prompt or, if refilled, one per row."""
    rows = plan.rows if plan.is_refilled else plan.pool
    return cache_bytes(of, rows, plan.prompt_slots, filled=is_paged(of, plan.rows))


def is_paged(of: JobShapes, rows: int) -> bool:
    """Return True if rows are sampled from pages, which pad heads of 64 to 128.

    Otherwise from a dense cache, which the compiler lays out without gaps. Follows `paged_kernel.is_supported` for
    bfloat16.
    """
    config, tensor = of.config, of.axis("tensor")
    if not _is_tpu(of) or not config.is_pageable or config.sinks:
        return False
    if config.head_dim > LANES or ahead(of.spec):
        return False
    pairs, odd = divmod(config.kv_heads, tensor)
    is_even = not (odd or rows % of.row_shards or config.heads % tensor)
    return is_even and sampler_shape.fills_tiles(pairs)


def _is_tpu(of: JobShapes) -> bool:
    return of.slice.generation in tpu_topology.USABLE_GIB
