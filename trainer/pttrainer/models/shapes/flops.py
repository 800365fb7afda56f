"""Floating-point operations of one optimizer step, counted exactly from the model and the batch; no jax.

MFU = FLOPs of the step / (seconds of the step · peak FLOPs of all chips)

Counts what the mathematics requires (a multiply-add is 2), not what a program adds: padding, repeated forward passes
(remat) and masked scores do not count. Norms, softmax and the optimizer are left out; they are not matrix products.

Letters: D model, F feed-forward, N and K query and key/value heads, H head size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pttrainer.models.config import Chunk, ModelConfig, Window
from pttrainer.models.lora.adapters import LAYER_INPUT, MLP, SHARED, Adapters
from pttrainer.models.shapes import parameters

if TYPE_CHECKING:
    import numpy as np

    from pttrainer.batch import Batch  # imports jax

Pairs = Callable[[Window], int]
"""Window -> pairs of a query and a visible key in a layer."""


def batch_flops(config: ModelConfig, adapters: Adapters | None, batch: Batch) -> float:
    """Return the FLOPs of the forward and backward pass of a batch (`step_flops`)."""
    learned = int((batch.mask_BT > 0).sum())
    return step_flops(config, adapters, tokens_of(batch), learned, lambda window: pairs(batch, window))


def step_flops(config: ModelConfig, adapters: Adapters | None, tokens: int, learned: int, pairs: Pairs) -> float:
    """Return the FLOPs of a forward and backward pass. learned: tokens whose prediction is trained.

    The backward pass of a product computes two more: the gradients of its input and of its weight. Frozen weights
    (with adapters) skip the second. Attention's products have no weights: their gradients are two products each,
    whatever is trained.
    """
    frozen = adapters is not None
    of_weights = 2 * tokens * stack_weights(config) + 2 * learned * config.vocab_size * config.d_model
    total = float(of_weights) * (2 if frozen else 3)
    if adapters is not None:
        of_adapters = sum(group.config.layers * adapter_weights(group.config, adapters) for group in config.groups)
        if "context" in adapters.matrices:
            of_adapters += adapters.rank * sum(parameters.layer_embeddings(config)["context",].shape)
        total += 6 * tokens * of_adapters
    of_attention = 3 * (attention(config, pairs) + 2.0 * tokens * state_numbers(config))
    return total + of_attention + indexers(config, tokens, pairs)


def row_flops(config: ModelConfig, adapters: Adapters | None, tokens: int) -> float:
    """Return the FLOPs of a row that is one example, all of it learned."""
    return step_flops(config, adapters, tokens, tokens, lambda window: visible(tokens, window))


def stack_weights(config: ModelConfig) -> int:
    """Return the weights of all layers' matrices that a token uses."""
    of_layers = sum(group.config.layers * active_weights(group.config) for group in config.groups)
    table = parameters.layer_embeddings(config)
    return of_layers + (table["context",].size if table else 0)


def active_weights(config: ModelConfig) -> int:
    """Return the weights of one layer's matrices that a token uses: of experts, the chosen, the shared, the router."""
    D, of_attention = config.d_model, sum(inputs * outputs for inputs, outputs in attention_matrices(config).values())
    if config.layer_embeddings is not None:
        of_attention += 2 * D * config.layer_embeddings.size
    if config.experts is None:
        return of_attention + 3 * D * config.d_ff
    used = config.experts.per_token * config.experts.d_ff + config.experts.shared_d_ff
    of_router = D * (config.experts.count + config.experts.shared_gated)
    return of_attention + of_router + 3 * D * used


def attention_matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the inputs and outputs of each matrix of one layer's attention."""
    return {name: one.shape[1:] for name, one in parameters.attention(config).items() if len(one.shape) == 3}


def adapter_weights(config: ModelConfig, adapters: Adapters) -> int:
    """Return the weights of one layer's adapters that a token uses.

    rank · (inputs + outputs) of each of their matrices; of experts, the chosen ones' and the router's.
    """
    D, experts = config.d_model, config.experts
    inner = D + config.d_ff if experts is None else experts.per_token * (D + experts.d_ff)
    sizes = {name: sum(sides) for name, sides in attention_matrices(config).items()}
    sizes |= dict.fromkeys(MLP, inner)
    if config.layer_embeddings is not None:
        sizes |= dict.fromkeys(LAYER_INPUT, D + config.layer_embeddings.size)
    if experts is not None:
        sizes["router"] = D + experts.count
        sizes |= dict.fromkeys(SHARED, D + experts.shared_d_ff)
    return adapters.rank * sum(sizes.get(name, 0) for name in adapters.matrices)


def attention(config: ModelConfig, pairs: Pairs) -> float:
    """Return the forward FLOPs of attention: 4·N·H per pair of a query and a visible key (scores, weighted values)."""
    total = 0.0
    for group in config.groups:
        of = group.config
        windows: Counter[Window] = Counter(of.window if of.is_local(layer) else None for layer in range(of.layers))
        indexer = None if of.latent is None else of.latent.indexer
        # What an indexer leaves of an example is as much as a window does; it looks at all tokens itself.
        windows = Counter({indexer.keep: of.layers}) if indexer is not None else windows
        total += 2.0 * _pair_numbers(of) * sum(count * pairs(window) for window, count in windows.items())
    return total


def indexers(config: ModelConfig, tokens: int, pairs: Pairs) -> float:
    """Return the FLOPs of what chooses the tokens that queries see: it has no backward pass."""
    total = 0.0
    for group in config.groups:
        of, latent = group.config, group.config.latent
        if latent is not None and latent.own_indexer is not None:
            matrices = sum(one.size for one in parameters.indexer(of).values() if len(one.shape) == 3)
            total += 2.0 * tokens * matrices
            total += 2.0 * of.layers * latent.own_indexer.heads * (latent.own_indexer.head_dim + 1) * pairs(None)
    return total


def score_numbers(config: ModelConfig) -> int:
    """Return the multiplications of all layers for a query and a visible key."""
    return sum(group.config.layers * _pair_numbers(group.config) for group in config.groups)


def state_numbers(config: ModelConfig) -> int:
    """Return the multiplications of all layers with a state for a token: it is read twice and written once."""
    deltas = ((group.config.layers, group.config.delta) for group in config.groups)
    return sum(3 * layers * of.state_size for layers, of in deltas if of is not None)


def _pair_numbers(config: ModelConfig) -> int:
    if config.delta is not None:
        return 0
    return config.heads * (config.head_dim + config.value_dim)


def visible(tokens: int, window: Window) -> int:
    """Return Σ_t min(t, window), t from 1: the pairs that a causal mask and a window leave of an example."""
    if isinstance(window, Chunk):
        return tokens // window.size * visible(window.size, None) + visible(tokens % window.size, None)
    window_tokens = tokens if window is None else min(tokens, window)
    # 1 + 2 + … + window, and a whole window for each query after that.
    return window_tokens * (window_tokens + 1) // 2 + (tokens - window_tokens) * window_tokens


def tokens_of(batch: Batch) -> int:
    """Return the number of computed tokens, without padding."""
    of_prompts = 0 if batch.prompts is None else (batch.prompts.segment_ids_PT > 0).sum()
    return int((batch.segment_ids_BT > 0).sum() + of_prompts)


def pairs(batch: Batch, window: Window) -> int:
    """Return the pairs of a query and a visible key; a shared prompt sees itself once."""
    if batch.prompts is None:
        return visible_pairs(example_lengths(batch.segment_ids_BT), window)
    prompts_P = (batch.prompts.segment_ids_PT > 0).sum(axis=1)
    before_B = prompts_P.repeat(batch.samples)
    whole_B = before_B + (batch.segment_ids_BT > 0).sum(axis=1)
    return visible_pairs(whole_B, window) - visible_pairs(before_B, window) + visible_pairs(prompts_P, window)


def visible_pairs(lengths: np.ndarray, window: Window) -> int:
    """Return the pairs within examples of these lengths."""
    return sum(visible(length, window) for length in lengths.tolist())


def example_lengths(segment_ids_BT: np.ndarray) -> np.ndarray:
    """Return the tokens of each example of packed rows; padding (0) is none."""
    import numpy as np  # not at the top: `ptctl plan --quick` uses this module, and imports no numpy

    ids = np.asarray(segment_ids_BT, np.int64)
    rows = np.arange(ids.shape[0])[:, None] * (int(ids.max(initial=0)) + 1)
    counts = np.bincount((rows + ids)[ids > 0])
    return counts[counts > 0]
