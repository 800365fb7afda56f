"""One definition of each model, used for training, rollout, scoring and preflight.

    model = Model(preset("tiny"))                       # or Model(from_hf(json), compute_dtype="bfloat16")
    params = jax.jit(model.init)(jax.random.key(seed))                  # nested dict of float32 arrays, layers stacked

    hidden_BTD = model.forward(params, tokens_BT, positions_BT, segment_ids_BT)      # packed rows, training
    logits_BTV = model.logits(params, hidden_BTD)       # all logits only in tests; see `losses.chunked_logprobs`

Decoding: weights are unstacked once per rollout, a prompt is prefilled once, and G samples share its cache.

    weights = model.for_decoding(params)                                     # inside jit, outside the token loop
    prompts = kv_cache.empty(model.config, P, prompt_slots, model.compute_dtype)
    hidden_PTD, prompts = model.decode(weights, tokens_PT, positions_PT, prompts)    # right-padded, pad position -1
    cache = kv_cache.share(model.config, prompts, samples=G, slots=bucket)   # P·G rows; row b reads prompt b // G
    hidden_B1D, cache = model.decode(weights, tokens_B1, positions_B1, cache)        # one new token per row

The next token's position is the prompt's length plus the number of tokens sampled so far, per row; a finished row may
pass position -1 (its slot stays empty). `kv_cache.grow` moves to the next bucket. `paged_kv_cache` has the same four
functions for TPUs, where `paged_kernel` supports it (`rollout.native.cache_layout`).

What needs no jax (`config`, `shapes`) imports none: preflight's formula must answer within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families import from_hf, to_hf
from pttrainer.models.families.presets import PRESETS, preset
from pttrainer.models.shapes.structure import ModelStructure, Params

if TYPE_CHECKING:
    from pttrainer.models.model import Model

__all__ = ["PRESETS", "Model", "ModelConfig", "ModelStructure", "Params", "from_hf", "preset", "to_hf"]


def __getattr__(name: str) -> Any:
    """Import `Model` on first use: it imports jax, which the shapes of a `ModelStructure` do not need."""
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pttrainer.models.model import Model

    return Model
