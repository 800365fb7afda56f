"""Rotary position embedding (arXiv 2104.09864) with the model's own theta and frequency scaling.

Frequencies come from the config and from nowhere else: a default theta in a function signature is how a
peer's Llama went wrong by 3.5 logits without a failing test.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from pttrainer.models.config import Llama3Scaling, ModelConfig


def frequencies(config: ModelConfig) -> np.ndarray:
    """Angular frequency of each pair of a head's elements, [H/2], float32."""
    inverse = 1.0 / (config.rope_theta ** (np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim))
    if config.rope_scaling is not None:
        inverse = _llama3(inverse, config.rope_scaling)
    return inverse.astype(np.float32)


def _llama3(inverse: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """Long wavelengths divided by `factor`, short ones kept, a linear blend between (Llama 3.1 release)."""
    wavelength = 2 * math.pi / inverse
    turns = scaling.original_max_positions / wavelength
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return np.asarray(blend * inverse + (1 - blend) * inverse / scaling.factor)


def rotation(config: ModelConfig, positions_BT: Array) -> tuple[Array, Array]:
    """Cosine and sine of every position's angles, each [B, T, H/2], float32."""
    angles = positions_BT.astype(jnp.float32)[..., None] * frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BTNH: Array, cos_BTR: Array, sin_BTR: Array) -> Array:
    """Rotates pairs (i, i + H/2), the layout of Hugging Face's checkpoints."""
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_BTR[:, :, None, :], sin_BTR[:, :, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x_BTNH.dtype)
