"""A rollout's programs: the engine's own functions, lowered from the shapes of a whole step of the job.

rollout/weights   the trained weights in the sampler's format and layout: the transfer, on shared chips
    rollout/prefill   the prompts that are computed at once, with the cache that they leave
    rollout/decode    tokens of all rows, with the cache at its largest

Each program's inputs lie where the previous one leaves them, so they are compiled one after the other. If other devices
sample, the weights go there in chunks (`rollout.disaggregated.weight_sync`), by two programs in place of the first:

transfer/cut      the largest chunk, on the devices that train
    transfer/put      the same, on those that sample, in the layout of decoding

Between the two it is copied from device to device. If the model takes images, a prompt has one, and `prefill` has the
tower in it. Left out: other engines than the native one; stop strings, which the host looks for; evaluation.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from pttrainer.batch import Images
from pttrainer.models import Model, Params
from pttrainer.preflight.compiler.abstract_inputs import inputs, model_of, placed
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, images_each
from pttrainer.preflight.shapes.passes import CUT, DECODE, PREFILL, PUT, WEIGHTS
from pttrainer.preflight.shapes.rollout_shapes import Plan, draft_of, plan_of, sampler
from pttrainer.rollout.disaggregated import weight_sync
from pttrainer.rollout.native import decode_loop, decoding_weights, prefill
from pttrainer.rollout.sampler import sampling_of
from pttrainer.rollout.speculative.block_proposals import Block
from pttrainer.rollout.speculative.draft_model import Draft
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import Proposer
from pttrainer.runtime.distributed import sharding

ANY_END = (0,)
"""End tokens; the tokenizer knows the actual ones, and no shape depends on them."""


class Lowered(NamedTuple):
    """A program before it is compiled.

    Of two with one name the last counts, unless they say how many times they run: then their results stay side by
    side. turns: of its loops, if the program does not say.
    """

    name: str
    program: Any
    turns: int | None = None
    times: int | None = None


Programs = Generator[Lowered, Any, None]
"""One after the other; each is sent back compiled before the next is yielded."""


def _proposer(of: JobShapes, draft: Model | None) -> Proposer | None:
    """Return the proposer of speculative tokens, if any, without its weights."""
    speculative = of.spec.rollout.speculative
    if speculative is None:
        return None
    if draft is not None and speculative.draft is not None:
        return Draft(speculative.draft.tokens, draft)
    if speculative.block is not None:
        return Block(speculative.block.tokens, model_of(of))
    assert speculative.ngram is not None
    return Ngram(speculative.ngram.tokens, speculative.ngram.longest)


def _proposing(proposer: Proposer, draft: Model | None, mesh: Mesh) -> Params | None:
    """Return the weights that propose, as shapes on shardings: a draft's, a head's, or none."""
    if isinstance(proposer, Block):
        dtype, whole = proposer.model.compute_dtype, sharding.replicated(mesh)
        shapes = proposer.head.abstract()
        return {name: jax.ShapeDtypeStruct(x.shape, dtype, sharding=whole) for name, x in shapes.items()}
    return None if draft is None else weights_of(draft, mesh)


def weights_of(model: Model, mesh: Mesh) -> Params:
    """Return a model's weights in the sampler's layout, as shapes on shardings."""
    where = decoding_weights.decoding_shardings(model, mesh)
    made: Params = jax.tree.map(placed, decoding_weights.decoding_shapes(model), where)
    return made


def lowered(of: JobShapes, mesh: Mesh) -> Programs:
    """Yield all three programs on these devices, with the training mesh in context; two if other devices sample."""
    if of.sampler is None:
        held, there = inputs(of, mesh), decoding_weights.reshaped(mesh, sampler(of).shape)
        yield from _transfer(of, there, model_of(of).join_params(held.frozen, held.state.params))
    else:
        there = _other_mesh(of)
    plan = plan_of(sampler(of))
    structure = draft_of(of)
    weights = decoding_weights.cut_weights(weights_of(model_of(of), there))
    draft = None if structure is None else Model.from_structure(structure)
    how = replace(sampling_of(of.spec), stop=(), max_length=0, max_new_tokens=0)
    proposer = _proposer(of, draft)
    guessed = () if proposer is None else (_proposing(proposer, draft, there),)
    decoding = decode_loop.Decoding(model_of(of), ANY_END, how, proposer)
    functions = decode_loop.jitted(decoding, there.devices.flat[0].device_kind)
    number, key = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.uint32)

    def lower(name: str, *inputs: Any) -> Any:
        with jax.set_mesh(there):
            return functions[name].lower(*inputs)

    prefill = lower("prefill", plan.samples, weights, _prompts(of, plan, there), key, key, number, number, *guessed)
    pool = _made((yield Lowered(PREFILL, prefill, plan.pieces)))._replace(routes_PSLk=None)
    begin = ("idle", plan.rows) if plan.is_refilled else ("spread", plan.samples)
    rows = _made((yield Lowered(DECODE, lower(*begin, plan.slots, pool))))
    source = pool if plan.is_refilled else None
    yield Lowered(DECODE, lower("advance", weights, rows, source, number, number, *guessed), turns=1)


def transferred(of: JobShapes, mesh: Mesh) -> Programs:
    """Yield the transfer of the largest chunk to other devices; at full depth, as it does not grow with depth."""
    held, there = inputs(of, mesh), _other_mesh(of)
    made = weight_sync.WeightSync(model_of(of), mesh, there)
    chunk, first = made.largest, jax.ShapeDtypeStruct((), jnp.int32)
    arrays = dict(weight_sync.named(model_of(of).join_params(held.frozen, held.state.params)))
    yield Lowered(CUT, made.cut(chunk).lower([arrays[name] for name in chunk.names], first))
    with jax.set_mesh(there):
        put = made.put(chunk).lower(made.parts(chunk))
    yield Lowered(PUT, put)


def _other_mesh(of: JobShapes) -> Mesh:
    """Return the mesh of the devices that only sample."""
    assert of.sampler is not None
    return sharding.make_mesh(of.sampler, tpu_topology.devices(of.sampling_slice))


def _transfer(of: JobShapes, mesh: Mesh, whole: Params) -> Programs:
    made = decoding_weights.DecodingWeights(model_of(of), mesh)
    for group in of.config.groups:
        layer = made.layers[group.name].lower(whole[group.name], jax.ShapeDtypeStruct((), jnp.int32))
        yield Lowered(WEIGHTS, layer, times=group.config.layers)
    for name, part in made.parts.items():
        yield Lowered(WEIGHTS, part.lower({name: whole[name]}), times=1)


def _prompts(of: JobShapes, plan: Plan, mesh: Mesh) -> prefill.PaddedPrompts:
    """Return padded prompts, laid out like `sharding.put` does; each has an image if the model takes them."""

    def one(shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.batch_sharding(mesh, shape))

    P, tokens_PS, vision = (plan.pool,), one((plan.pool, plan.prompt_slots)), of.config.vision
    images = None
    if vision is not None:
        pixels = one((plan.pool, images_each(of.spec), *vision.pixels_shape(plan.prompt_tokens)), jnp.float32)
        images = Images(pixels, tokens_PS, one(P))
    return prefill.PaddedPrompts(tokens_PS, one(P), one(P, jnp.uint32), one(P), images)


def _made(compiled: Any) -> Any:
    """Return a compiled program's results, as shapes on their shardings."""
    return jax.tree.map(placed, compiled.out_info, compiled.output_shardings)
