"""A rollout's programs: the engine's own functions, lowered from the shapes of a whole step of the job.

    rollout/weights   the trained weights into the sampler's format and layout: the transfer, where chips are shared
    rollout/prefill   the prompts that are computed at once, with the cache that they leave
    rollout/decode    tokens of all rows, with the cache at its largest

Each program's inputs lie where the program before it leaves them, so they are compiled one after the other. Left out:
other engines than the native one; the transfer to other devices, which goes piece by piece (`rollout.transfer`); stop
strings, which the host looks for; evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from pttrainer import sharding
from pttrainer.models import Model, Params
from pttrainer.preflight import chips
from pttrainer.preflight.subject import Subject, inputs, placed
from pttrainer.rollout import decoding, guessing, native, prefill, sizes
from pttrainer.rollout.draft import Draft
from pttrainer.rollout.ngram import Ngram
from pttrainer.rollout.sampling import sampling_of
from pttrainer.rollout.speculation import Proposer

ROLLOUT = "rollout"
WEIGHTS, PREFILL, DECODE = f"{ROLLOUT}/weights", f"{ROLLOUT}/prefill", f"{ROLLOUT}/decode"
ANY_END = (0,)
"""End tokens. Which they are is the tokenizer's to say, and is in no shape."""


class Lowered(NamedTuple):
    """A program before it is compiled. Of two with one name the last counts, unless they say how many times they run:
    then their results stay beside each other. turns: of its loops, where the program does not say."""

    name: str
    program: Any
    turns: int | None = None
    times: int | None = None


Programs = Generator[Lowered, Any, None]
"""One after the other; each is sent back compiled before the next is asked for."""


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
        return sizes.slots_for(self.new_tokens + self.ahead)

    @property
    def prompt_slots(self) -> int:
        return sizes.slots_for(self.prompt_tokens)

    @property
    def pieces(self) -> int:
        """In which a prompt is computed."""
        return self.prompt_slots // prefill.prefill_piece(self.pool, self.prompt_slots)

    @property
    def tokens(self) -> int:
        """One after the other, in all, if every completion is as long as it may be."""
        return -(-self.completions // self.rows) * self.new_tokens


def samples_rollouts(of: Subject) -> bool:
    """Whether this job samples completions by the model itself, on the chips that it trains on."""
    return has_rollouts(of) and of.spec.rollout.vllm is None


def has_rollouts(of: Subject) -> bool:
    """Whether it learns from completions of its own."""
    algorithm = of.spec.algorithm
    return algorithm.learns_from_rewards or (algorithm.distill is not None and algorithm.distill.mode == "on-policy")


def sampler(of: Subject) -> Subject:
    """The job on the mesh that samples: that of other devices, or one of the same, which may split matrices more often
    than the one that trains."""
    if of.sampler is not None:
        return replace(of, shape=of.sampler)
    return replace(of, shape=native.sampler_shape(_deep(of).model, of.shape, chips.usable_bytes(of.slice)))


def _deep(of: Subject) -> Subject:
    """What decides how many rows and shards there are, with all of its layers."""
    return of.whole or of


def plan_of(of: Subject) -> Plan:
    """As the engine would do it: prompts fill what completions leave of a row. Here and below, of the `sampler`."""
    rollout, length = of.spec.rollout, of.spec.training.sequence_length
    completions = of.spec.training.batch_size
    samples = of.spec.algorithm.samples_per_prompt
    cache = int(chips.usable_bytes(of.slice) * sizes.CACHE_SHARE)
    ahead, draft = guessing.ahead(of.spec), draft_of(of)
    each = sizes.token_bytes(_deep(of).model) + (0 if draft is None else sizes.token_bytes(draft))
    most = rollout.slots or sizes.rows_within(each * (length + ahead), math.prod(of.shape), cache)
    rows = min(completions, max(most - most % of.row_shards, 1))
    pool = completions // samples if rows == completions else max(1, rows // samples)
    prompt = max(length - rollout.max_new_tokens, 1)
    return Plan(completions, samples, rows, pool, prompt, rollout.max_new_tokens, ahead)


def draft_of(of: Subject) -> Model | None:
    """The model that guesses tokens, if one does."""
    asked = of.spec.rollout.speculative
    if asked is None or asked.draft is None:
        return None
    return guessing.draft_model(asked.draft, of.model, _silent, weights=False)[1]


def _proposer(of: Subject) -> Proposer | None:
    """What guesses tokens, if anything does, without the weights that it may have."""
    asked, draft = of.spec.rollout.speculative, draft_of(of)
    if asked is None:
        return None
    if draft is not None and asked.draft is not None:
        return Draft(asked.draft.tokens, draft)
    assert asked.ngram is not None
    return Ngram(asked.ngram.tokens, asked.ngram.longest)


def weights_of(model: Model, mesh: Mesh | AbstractMesh) -> Params:
    """Weights of a model as the sampler has them, as shapes where they lie."""
    where = native.decoding_shardings(model, mesh)  # type: ignore[arg-type]  # an AbstractMesh makes the same
    made: Params = jax.tree.map(placed, native.decoding_shapes(model), where)
    return made


def cache_bytes(of: Subject, rows: int, slots: int) -> int:
    """Keys and values of a device: rows and key heads are split where all parts are equal (`Decoding`)."""
    here = rows // of.row_shards if rows % of.row_shards == 0 else rows
    tensor, heads = of.axis("tensor"), of.config.kv_heads
    return here * slots * sizes.token_bytes(of.model) // (tensor if heads % tensor == 0 else 1)


def prompts_bytes(of: Subject, plan: Plan) -> int:
    """What rows read of their prompts: one copy for all samples of a prompt, or, refilled, a copy for each row."""
    return cache_bytes(of, plan.rows if plan.is_refilled else plan.pool, plan.prompt_slots)


def lowered(of: Subject, mesh: Mesh) -> Programs:
    """All three programs on these devices, with the mesh that trains in context; two where other devices sample."""
    if of.sampler is None:
        held, there = inputs(of, mesh), native.reshaped(mesh, sampler(of).shape)
        yield from _transfer(of, there, of.model.whole(held.frozen, held.state.params))
    else:
        there = sharding.make_mesh(of.sampler, chips.devices(of.sampling_slice))
    plan, weights, draft = plan_of(sampler(of)), weights_of(of.model, there), draft_of(of)
    how = replace(sampling_of(of.spec), stop=(), max_length=0, max_new_tokens=0)
    proposer = _proposer(of)
    guessed = () if proposer is None else (None if draft is None else weights_of(draft, there),)
    functions = decoding.jitted(decoding.Decoding(of.model, ANY_END, how, proposer))
    number, key = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.uint32)

    def lower(name: str, *inputs: Any) -> Any:
        with jax.set_mesh(there):
            return functions[name].lower(*inputs)

    prefill = lower("prefill", plan.samples, weights, _prompts(plan, there), key, key, number, number, *guessed)
    pool = _made((yield Lowered(PREFILL, prefill, plan.pieces)))
    begin = ("idle", plan.rows) if plan.is_refilled else ("spread", plan.samples)
    rows = _made((yield Lowered(DECODE, lower(*begin, plan.slots, pool))))
    source = pool if plan.is_refilled else None
    yield Lowered(DECODE, lower("advance", weights, rows, source, number, number, *guessed), turns=1)


def _transfer(of: Subject, mesh: Mesh, whole: Params) -> Programs:
    made = native.Transfer(of.model, mesh)
    layer = made.layer.lower(whole["layers"], jax.ShapeDtypeStruct((), jnp.int32))
    yield Lowered(WEIGHTS, layer, times=of.config.layers)
    for name, part in made.parts.items():
        yield Lowered(WEIGHTS, part.lower({name: whole[name]}), times=1)


def _prompts(plan: Plan, mesh: Mesh) -> prefill.Padded:
    """As `session.put` lays them out."""

    def one(shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        where = NamedSharding(mesh, sharding.fitting_batch_spec(mesh, shape))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    P = (plan.pool,)
    return prefill.Padded(one((plan.pool, plan.prompt_slots)), one(P), one(P, jnp.uint32), one(P))


def _made(compiled: Any) -> Any:
    """What a compiled program returns, as shapes where it leaves them."""
    return jax.tree.map(placed, compiled.out_info, compiled.output_shardings)


def _silent(line: str) -> None:
    del line
