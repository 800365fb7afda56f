"""Build the proposer that the spec names, with its draft model and the draft's weights.

The draft is kept in decoding layout and in the model's compute format. Nothing of it is trained or saved. It decides
how fast samples come, never which: so it may be another one after a restart.
"""

import time

import jax
from jax.sharding import Mesh

from ptapi.spec import DraftModel, PostTrainJobSpec
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import Model
from pttrainer.models.loading.model_loader import load_params
from pttrainer.models.loading.model_spec import DRAFT_URI, ModelSource, check_state, draft_of
from pttrainer.models.shapes import parameters
from pttrainer.rollout.context import Context
from pttrainer.rollout.native.decoding_weights import decoding_shardings
from pttrainer.rollout.speculative.block_proposals import Block
from pttrainer.rollout.speculative.draft_model import Draft
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import Speculation
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.io.model_files import Note

_FIELD = "spec.rollout.speculative"


def speculation(context: Context, mesh: Mesh) -> Speculation | None:
    """Return the job's speculation on the sampling mesh; None if it has none. Raises ConfigError."""
    return of_job(context.spec, context.model, context.tokenizer, context.mesh, mesh, context.note)


def of_job(
    spec: PostTrainJobSpec, model: Model, tokenizer: Tokenizer, loading: Mesh, sampling: Mesh, note: Note
) -> Speculation | None:
    """Return the same where there is no trainer. loading: the mesh that reads a draft's files, of the same devices."""
    speculative = spec.rollout.speculative
    if speculative is None:
        return None
    check_state(_FIELD, model.config)
    if speculative.ngram is not None:
        return Speculation(Ngram(speculative.ngram.tokens, speculative.ngram.longest))
    if speculative.block is not None:
        return Speculation(Block(speculative.block.tokens, model))
    assert speculative.draft is not None
    started = time.monotonic()
    source, draft = _checked_draft(speculative.draft, model, tokenizer, note)
    whole = sharding.weight_shardings(loading, draft.abstract(), draft.logical_axes())
    stored = load_params(source, draft, whole, seed=spec.training.seed)
    weights = jax.jit(draft.for_decoding, out_shardings=decoding_shardings(draft, sampling))(stored)
    seconds = time.monotonic() - started
    note(f"draft: {speculative.draft.uri}, {parameters.count(source.config):,} weights, {seconds:.1f} s")
    return Speculation(Draft(speculative.draft.tokens, draft), weights, draft)


def _checked_draft(spec: DraftModel, target: Model, tokenizer: Tokenizer, note: Note) -> tuple[ModelSource, Model]:
    """Return where the draft's weights are, and its model. Raises ConfigError."""
    source, form = draft_of(spec, target, note)
    if source.config.vocab_size < tokenizer.size:
        raise ConfigError(
            f"{DRAFT_URI}: {spec.uri}: has {source.config.vocab_size} tokens, but the tokenizer has "
            f"{tokenizer.size}; accepted: a draft with the model's tokenizer"
        )
    return source, Model.from_structure(form)
