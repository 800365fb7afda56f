"""Floating-point operations of one optimizer step, counted exactly from the model and the batch.

    MFU = FLOPs of the step / (seconds of the step · peak FLOPs of all chips)

Counted is what the mathematics asks for (a multiply-add is 2), not what a program does on top: padding, repeated
forward passes (remat) and masked scores do not count. Norms, softmax and the optimizer are left out; they are no
matrix products. Letters: D model, V vocabulary, F feed-forward, N and K query and key/value heads, H head size.
"""

from __future__ import annotations

import numpy as np

from pttrainer.batch import Batch
from pttrainer.models.adapters import Adapters
from pttrainer.models.config import ModelConfig


def of_step(config: ModelConfig, adapters: Adapters | None, batch: Batch) -> float:
    """Forward and backward pass of a batch.

    The backward pass of a product computes two more: the gradient of its input and that of its weight. Frozen weights
    (with adapters) have none of the second kind. Attention's products have no weights: their gradients are two
    products each, whatever is trained.
    """
    tokens, learned = tokens_of(batch), int(np.sum(batch.mask_BT > 0))
    frozen = adapters is not None
    of_weights = 2 * tokens * config.layers * active_weights(config) + 2 * learned * config.vocab_size * config.d_model
    total = float(of_weights) * (2 if frozen else 3)
    if adapters is not None:
        total += 6 * tokens * config.layers * adapter_weights(config, adapters)
    return total + 3 * attention(config, batch)


def tokens_of(batch: Batch) -> int:
    """Tokens that are computed, padding left out."""
    of_prompts = 0 if batch.prompts is None else np.sum(batch.prompts.segment_ids_PT > 0)
    return int(np.sum(batch.segment_ids_BT > 0) + of_prompts)


def active_weights(config: ModelConfig) -> int:
    """Weights of one layer's matrices that a token passes through: of experts, the chosen ones and the router."""
    D, q, kv = config.d_model, config.heads * config.head_dim, config.kv_heads * config.head_dim
    of_attention = 2 * D * q + 2 * D * kv
    if config.experts is None:
        return of_attention + 3 * D * config.d_ff
    return of_attention + D * config.experts.count + config.experts.per_token * 3 * D * config.experts.d_ff


def adapter_weights(config: ModelConfig, adapters: Adapters) -> int:
    """Weights of one layer's adapters: rank · (inputs + outputs) of each of their matrices."""
    D, F, q, kv = config.d_model, config.d_ff, config.heads * config.head_dim, config.kv_heads * config.head_dim
    sizes = {"q": D + q, "k": D + kv, "v": D + kv, "o": q + D, "gate": D + F, "up": D + F, "down": F + D}
    return adapters.rank * sum(sizes[name] for name in adapters.matrices)


def attention(config: ModelConfig, batch: Batch) -> float:
    """Forward pass of attention: 4·N·H per pair of a query and a key that it sees (scores, and weighted values)."""
    pairs = 0
    for layer in range(config.layers):
        window = config.window if config.is_local(layer) else None
        pairs += _pairs(batch, window)
    return 4.0 * config.heads * config.head_dim * pairs


def _pairs(batch: Batch, window: int | None) -> int:
    """Of a batch; a row that continues a prompt sees it, and the prompt sees itself once."""
    if batch.prompts is None:
        return visible_pairs(example_lengths(batch.segment_ids_BT), window)
    prompts_P = np.sum(batch.prompts.segment_ids_PT > 0, axis=1)
    before_B = np.repeat(prompts_P, batch.samples)
    whole_B = before_B + np.sum(batch.segment_ids_BT > 0, axis=1)
    return visible_pairs(whole_B, window) - visible_pairs(before_B, window) + visible_pairs(prompts_P, window)


def visible_pairs(lengths: np.ndarray, window: int | None) -> int:
    """Σ over examples of Σ_t min(t, window), t from 1: what a causal mask and a window leave."""
    n = lengths.astype(np.int64)
    seen = n if window is None else np.minimum(n, window)
    # 1 + 2 + … + seen, and `seen` for each query after that.
    return int(np.sum(seen * (seen + 1) // 2 + (n - seen) * seen))


def example_lengths(segment_ids_BT: np.ndarray) -> np.ndarray:
    """Tokens of each example of packed rows; padding (0) is none."""
    ids = np.asarray(segment_ids_BT, np.int64)
    rows = np.arange(ids.shape[0])[:, None] * (int(ids.max(initial=0)) + 1)
    counts = np.bincount((rows + ids)[ids > 0])
    return counts[counts > 0]
