"""Build the proposer that the spec names, with its draft model and the draft's weights.

The draft is kept in decoding layout and in the model's compute format. Nothing of it is trained or saved. It decides
how fast samples come, never which: so it may be another one after a restart.
"""

import time

import jax
from jax.sharding import Mesh

from ptapi.spec import DraftModel, PostTrainJobSpec
from pttrainer.errors import ConfigError
from pttrainer.models import Model
from pttrainer.models.loading.model_loader import load_params
from pttrainer.models.loading.model_spec import DRAFT_URI, check_state, draft_of
from pttrainer.models.shapes import parameters
from pttrainer.rollout.context import Context
from pttrainer.rollout.native.decoding_weights import decoding_shardings
from pttrainer.rollout.speculative.draft_model import Draft
from pttrainer.rollout.speculative.prompt_lookup import Ngram
from pttrainer.rollout.speculative.verify import Speculation
from pttrainer.runtime.distributed import sharding

_FIELD = "spec.rollout.speculative"


def speculation(context: Context, mesh: Mesh) -> Speculation | None:
    """Return the job's speculation on the sampling mesh; None if it has none. Raises ConfigError."""
    spec = context.spec.rollout.speculative
    if spec is None or spec.draft is None:
        return without_draft(context.spec, context.model)
    check_state(_FIELD, context.model.config)
    return _drafted(context, spec.draft, mesh)


def without_draft(spec: PostTrainJobSpec, model: Model) -> Speculation | None:
    """Return the job's speculation if it needs no weights of its own; None if it has none. Raises ConfigError."""
    speculative = spec.rollout.speculative
    if speculative is None or speculative.ngram is None:
        return None
    check_state(_FIELD, model.config)
    return Speculation(Ngram(speculative.ngram.tokens, speculative.ngram.longest))


def _drafted(context: Context, spec: DraftModel, mesh: Mesh) -> Speculation:
    started = time.monotonic()
    source, form = draft_of(spec, context.model, context.note)
    model = Model.from_structure(form)
    if source.config.vocab_size < context.tokenizer.size:
        raise ConfigError(
            f"{DRAFT_URI}: {spec.uri}: has {source.config.vocab_size} tokens, but the tokenizer has "
            f"{context.tokenizer.size}; accepted: a draft with the model's tokenizer"
        )
    whole = sharding.weight_shardings(context.mesh, model.abstract(), model.logical_axes())
    stored = load_params(source, model, whole, seed=context.spec.training.seed)
    weights = jax.jit(model.for_decoding, out_shardings=decoding_shardings(model, mesh))(stored)
    seconds = time.monotonic() - started
    context.note(f"draft: {spec.uri}, {parameters.count(source.config):,} weights, {seconds:.1f} s")
    return Speculation(Draft(spec.tokens, model), weights, model)
