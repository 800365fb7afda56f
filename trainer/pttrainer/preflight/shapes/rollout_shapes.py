"""How a job samples completions: how many rows at once, with which cache, on which mesh. Arithmetic, without jax.

`rollouts` lowers the engine's programs of it. Left out: other engines than the native one; evaluation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ptapi.spec import PostTrainJobSpec
from pttrainer.models import Form
from pttrainer.models.config import LANES
from pttrainer.models.loading.model_spec import draft_of as draft_form
from pttrainer.preflight.shapes import device_bytes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import Subject, silent
from pttrainer.rollout.native import buckets
from pttrainer.runtime.distributed import logical_axes


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

    @property
    def is_refilled(self) -> bool:
        """Rows that end take over other samples."""
        return self.rows < self.completions

    @property
    def prompts(self) -> int:
        return self.completions // self.samples

    @property
    def slots(self) -> int:
        return buckets.slots_for(self.new_tokens + self.ahead)

    @property
    def prompt_slots(self) -> int:
        return buckets.slots_for(self.prompt_tokens)

    @property
    def pieces(self) -> int:
        """In which a prompt is computed."""
        return self.prompt_slots // buckets.prefill_piece(self.pool, self.prompt_slots)

    @property
    def tokens(self) -> int:
        """One after the other, in all, if every completion is as long as it may be."""
        return -(-self.completions // self.rows) * self.new_tokens


def samples_rollouts(of: Subject) -> bool:
    """Whether this job samples completions by the model itself, on the chips that it trains on."""
    return has_rollouts(of) and of.spec.rollout.vllm is None


def has_rollouts(of: Subject) -> bool:
    """Whether it learns from completions of its own."""
    return of.spec.algorithm.is_on_policy


def sampler(of: Subject) -> Subject:
    """The job on the mesh that samples: that of other devices, or one of the same, which may split matrices more often
    than the one that trains."""
    if of.sampler is not None:
        return replace(of, shape=of.sampler)
    form, has = _deep(of).form, tpu_topology.usable_bytes(of.slice)
    return replace(of, shape=buckets.sampler_shape(form, form.decoding_bytes, of.shape, has))


def _deep(of: Subject) -> Subject:
    """What decides how many rows and shards there are, with all of its layers."""
    return of.whole or of


def plan_of(of: Subject) -> Plan:
    """As the engine would do it: prompts fill what completions leave of a row. Here and below, of the `sampler`."""
    rollout, length = of.spec.rollout, of.spec.training.sequence_length
    completions = of.spec.training.batch_size
    samples = of.spec.algorithm.samples_per_prompt
    cache = int(tpu_topology.usable_bytes(of.slice) * buckets.CACHE_SHARE)
    guessed, draft = ahead(of.spec), draft_of(of)
    each = sum(buckets.token_bytes(form, filled=_is_tpu(of)) for form in (_deep(of).form, draft) if form is not None)
    most = rollout.slots or buckets.rows_within(each * (length + guessed), math.prod(of.shape), cache)
    rows = min(completions, max(most - most % of.row_shards, 1))
    pool = completions // samples if rows == completions else max(1, rows // samples)
    prompt = max(length - rollout.max_new_tokens, 1)
    return Plan(completions, samples, rows, pool, prompt, rollout.max_new_tokens, guessed)


def ahead(spec: PostTrainJobSpec) -> int:
    """Tokens that are guessed for each pass; 0 without speculation."""
    asked = spec.rollout.speculative
    one = None if asked is None else asked.ngram or asked.draft
    return 0 if one is None else one.tokens


def draft_of(of: Subject) -> Form | None:
    """The model that guesses tokens, if one does."""
    asked = of.spec.rollout.speculative
    if asked is None or asked.draft is None:
        return None
    return draft_form(asked.draft, of.form, silent, weights=False)[1]


def weights_bytes(form: Form, shape: logical_axes.Shape) -> int:
    """Weights of a model as a sampler has them, on a device of this mesh."""
    mesh = device_bytes.sizes(shape)
    of_layer, tables = (
        device_bytes.total(device_bytes.of_weights(part.items(), mesh))
        for part in (form.decoding_layer, form.decoding_tables)
    )
    return form.config.layers * of_layer + tables


def cache_bytes(of: Subject, rows: int, slots: int, *, filled: bool = False) -> int:
    """Keys and values of a device: rows and key heads are split where all parts are equal (`Decoding`). filled: as
    pages hold them."""
    here = rows // of.row_shards if rows % of.row_shards == 0 else rows
    tensor, heads = of.axis("tensor"), of.config.kv_heads
    return here * slots * buckets.token_bytes(of.form, filled=filled) // (tensor if heads % tensor == 0 else 1)


def rows_bytes(of: Subject, rows: int, slots: int) -> int:
    """Those of rows that are sampled."""
    return cache_bytes(of, rows, slots, filled=is_paged(of, rows))


def prompts_bytes(of: Subject, plan: Plan) -> int:
    """What rows read of their prompts: one copy for all samples of a prompt, or, refilled, a copy for each row."""
    rows = plan.rows if plan.is_refilled else plan.pool
    return cache_bytes(of, rows, plan.prompt_slots, filled=is_paged(of, plan.rows))


def is_paged(of: Subject, rows: int) -> bool:
    """Whether rows are sampled from pages, which hold heads of 64 as if they had 128; else from a dense cache, which
    the compiler lays out without gaps. As `paged_attention.is_chosen` decides for bfloat16."""
    config, tensor = of.config, of.axis("tensor")
    if not _is_tpu(of) or config.sinks or config.head_dim > LANES or ahead(of.spec):
        return False
    pairs, odd = divmod(config.kv_heads, tensor)
    is_even = not (odd or rows % of.row_shards or config.heads % tensor)
    return is_even and (pairs in (1, 2, 4) or pairs % 8 == 0)


def _is_tpu(of: Subject) -> bool:
    return of.slice.generation in tpu_topology.USABLE_GIB
