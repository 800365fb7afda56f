"""Floating-point operations of one optimizer step, counted exactly from the model and the batch.

MFU = FLOPs of the step / (seconds of the step · peak FLOPs of all chips)

Counts what the mathematics requires (a multiply-add is 2), not what a program adds: padding, repeated forward passes
(remat) and masked scores do not count. Norms, softmax and the optimizer are left out; they are not matrix products. The
cost of a token is in `matmul_flops`.
"""

from __future__ import annotations

import numpy as np

from pttrainer.batch import Batch
from pttrainer.models import matmul_flops
from pttrainer.models.config import ModelConfig
from pttrainer.models.lora.adapters import Adapters


def of_step(config: ModelConfig, adapters: Adapters | None, batch: Batch) -> float:
    """Return the FLOPs of the forward and backward pass of a batch (`matmul_flops.of_step`)."""
    learned = int(np.sum(batch.mask_BT > 0))
    return matmul_flops.of_step(config, adapters, tokens_of(batch), learned, lambda window: pairs(batch, window))


def tokens_of(batch: Batch) -> int:
    """Return the number of computed tokens, without padding."""
    of_prompts = 0 if batch.prompts is None else np.sum(batch.prompts.segment_ids_PT > 0)
    return int(np.sum(batch.segment_ids_BT > 0) + of_prompts)


def pairs(batch: Batch, window: int | None) -> int:
    """Return the pairs of a query and a visible key; a shared prompt sees itself once."""
    if batch.prompts is None:
        return visible_pairs(example_lengths(batch.segment_ids_BT), window)
    prompts_P = np.sum(batch.prompts.segment_ids_PT > 0, axis=1)
    before_B = np.repeat(prompts_P, batch.samples)
    whole_B = before_B + np.sum(batch.segment_ids_BT > 0, axis=1)
    return visible_pairs(whole_B, window) - visible_pairs(before_B, window) + visible_pairs(prompts_P, window)


def visible_pairs(lengths: np.ndarray, window: int | None) -> int:
    """Return the pairs within examples of these lengths."""
    return sum(matmul_flops.visible(length, window) for length in lengths.tolist())


def example_lengths(segment_ids_BT: np.ndarray) -> np.ndarray:
    """Return the tokens of each example of packed rows; padding (0) is none."""
    ids = np.asarray(segment_ids_BT, np.int64)
    rows = np.arange(ids.shape[0])[:, None] * (int(ids.max(initial=0)) + 1)
    counts = np.bincount((rows + ids)[ids > 0])
    return counts[counts > 0]
