"""Rotary position embedding (arXiv 2104.09864) with the model's own theta and frequency scaling.

Frequencies come from the config and from nowhere else: a default theta in a function signature once made a peer's Llama
wrong by 3.5 logits without a failing test.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pttrainer.models.config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    QueryScaling,
    Rope,
    YarnScaling,
)
from pttrainer.runtime.distributed import sharding

_EXACT = jax.lax.Precision.HIGHEST
"""Numbers of float32 stay whole in a product; those of 16 bits always do."""
Rotation = tuple[Array, ...]
"""Cosine and sine [B, T, R], float32, if R pairs turn; where queries are scaled by position, their factor [B, T]."""
Sections = tuple[int, int, int]
"""How many pairs turn by time, row and column."""


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Return the angular frequency of each pair of a head's elements that turn, [H/2] if all do, float32."""
    if not rope.share:  # beside layers whose heads turn whole: all angles are 0
        return np.zeros(head_dim // 2, np.float32)
    turning = int(head_dim * rope.share)
    inverse = 1.0 / (rope.theta ** (np.arange(0, turning, 2, dtype=np.float64) / turning))
    match rope.scaling:
        case LinearScaling(factor):
            inverse = inverse / factor
        case Llama3Scaling():
            inverse = _llama3(inverse, rope.scaling)
        case YarnScaling():
            inverse = _yarn(inverse, rope.theta, rope.scaling)
        case LongRopeScaling():
            inverse = inverse / np.asarray(rope.scaling.long if rope.scaling.is_long else rope.scaling.short)
        case ProportionalScaling(share, factor):
            inverse = np.where(np.arange(len(inverse)) < int(share * head_dim // 2), inverse / factor, 0.0)
    return inverse.astype(np.float32)


def _llama3(inverse: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """Divide long wavelengths by `factor`, keep short ones, blend linearly between (Llama 3.1 release)."""
    wavelength = 2 * math.pi / inverse
    turns = scaling.original_max_positions / wavelength
    width = scaling.high_freq_factor - scaling.low_freq_factor
    # Llama 4 has no width: nothing is blended.
    blend = np.clip((turns - scaling.low_freq_factor) / width, 0.0, 1.0) if width else turns >= scaling.low_freq_factor
    return np.asarray(blend * inverse + (1 - blend) * inverse / scaling.factor)


def _yarn(inverse: np.ndarray, theta: float, scaling: YarnScaling) -> np.ndarray:
    """Keep pairs that turn over beta_fast times in the original context, interpolate those below beta_slow."""
    H = 2 * len(inverse)

    def pair_that_turns(times: float) -> float:
        return H * math.log(scaling.original_max_positions / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, H - 1)
    width = high - low if high != low else 0.001
    interpolated = np.clip((np.arange(len(inverse)) - low) / width, 0.0, 1.0)
    return np.asarray(interpolated * inverse / scaling.factor + (1 - interpolated) * inverse)


def rotation(rope: Rope, head_dim: int, positions_BT: Array, sections: Sections | None = None) -> Rotation:
    """Return cosine and sine of every position's angles, and its queries' factor where the model has one.

    sections: positions are [3, B, T], of which each pair turns by one (Qwen3-VL's interleaved M-RoPE).
    """
    if sections is not None:
        return _rotation(rope, head_dim, _by_pair(positions_BT, sections, len(frequencies(rope, head_dim))))
    if rope.query_scaling is None:
        return _rotation(rope, head_dim, positions_BT)
    return *_rotation(rope, head_dim, positions_BT), _query_factor(rope.query_scaling, positions_BT)


def _query_factor(scaling: QueryScaling, positions_BT: Array) -> Array:
    # Padding has position -1: its logarithm would be infinite, and its keys no numbers.
    periods_BT = jnp.floor_divide(jnp.maximum(positions_BT, 0) + scaling.first, scaling.period)
    return 1.0 + scaling.slope * jnp.log1p(periods_BT.astype(jnp.float32))


def _by_pair(positions_3BT: Array, sections: Sections, pairs: int) -> Array:
    """Return each pair's position [B, T, R]: time, row and column take turns until one's section is used up.

    The pairs left turn by time, as many as they are: as in transformers, its own section counts for nothing.
    """
    axes_R = np.zeros(pairs, np.int32)
    for axis in (1, 2):
        axes_R[axis : 3 * sections[axis] : 3] = axis
    return jnp.moveaxis(positions_3BT[axes_R], 0, -1)


def _rotation(rope: Rope, head_dim: int, positions: Array) -> tuple[Array, Array]:
    """Return cosine and sine of positions [B, T], or of those of every pair [B, T, R]."""
    by_pair = positions if positions.ndim == 3 else positions[..., None]
    angles = by_pair.astype(jnp.float32) * frequencies(rope, head_dim)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if isinstance(rope.scaling, YarnScaling | LongRopeScaling) and rope.scaling.attention_factor != 1.0:
        return cos * rope.scaling.attention_factor, sin * rope.scaling.attention_factor
    return cos, sin


def apart(x_BTNH: Array) -> Array:
    """Return heads whose pairs are stored side by side in the order of `rotate`, which changes no score."""
    *rows, H = x_BTNH.shape
    return x_BTNH.reshape(*rows, H // 2, 2).swapaxes(-1, -2).reshape(*rows, H)


def rotated(q_BTNH: Array, k_BTKH: Array, by: Rotation) -> tuple[Array, Array]:
    """Rotate queries and keys, and scale queries where the model does."""
    cos_BTR, sin_BTR, *factors_BT = by
    q_BTNH, k_BTKH = rotate(q_BTNH, cos_BTR, sin_BTR), rotate(k_BTKH, cos_BTR, sin_BTR)
    for factor_BT in factors_BT:
        q_BTNH = q_BTNH * factor_BT[..., None, None].astype(q_BTNH.dtype)
    return q_BTNH, k_BTKH


def rotate(x_BTNH: Array, cos_BTR: Array, sin_BTR: Array) -> Array:
    """Rotate pairs (i, i + R) of the first 2·R elements, the layout of Hugging Face's checkpoints."""
    turning = 2 * cos_BTR.shape[-1]
    if turning < x_BTNH.shape[-1]:
        rotated = rotate(x_BTNH[..., :turning], cos_BTR, sin_BTR)
        return jnp.concatenate([rotated, x_BTNH[..., turning:]], axis=-1)
    if sharding.chip()[0] == "tpu" and x_BTNH.shape[1] > 1:
        return rotate_by_product(x_BTNH, cos_BTR, sin_BTR)
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_BTR[:, :, None, :], sin_BTR[:, :, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x_BTNH.dtype)


@jax.custom_vjp
def rotate_by_product(x_BTNH: Array, cos_BTR: Array, sin_BTR: Array) -> Array:
    """Rotate like `rotate`, with a product in place of the halves.

    A TPU's tiles have 128 numbers, so the halves of a head are copies of half-filled tiles, made anew in every pass.
    The product with a matrix of 0, 1 and -1 is exact, and costs a quarter of a percent of a layer's arithmetic.
    """
    cos, sin = (jnp.concatenate([half, half], axis=-1)[:, :, None, :] for half in (cos_BTR, sin_BTR))
    turned_BTNH = jnp.matmul(x_BTNH, _quarter_turn(x_BTNH), precision=_EXACT, preferred_element_type=jnp.float32)
    return (x_BTNH.astype(jnp.float32) * cos + turned_BTNH * sin).astype(x_BTNH.dtype)


def _rotated(x_BTNH: Array, cos_BTR: Array, sin_BTR: Array) -> tuple[Array, tuple[Array, Array]]:
    return rotate_by_product(x_BTNH, cos_BTR, sin_BTR), (cos_BTR, sin_BTR)


def _rotated_back(saved: tuple[Array, Array], gradient_BTNH: Array) -> tuple[Array, Array, Array]:
    """Return the gradients: of positions there is none."""
    cos_BTR, sin_BTR = saved
    return rotate_by_product(gradient_BTNH, cos_BTR, -sin_BTR), jnp.zeros_like(cos_BTR), jnp.zeros_like(sin_BTR)


rotate_by_product.defvjp(_rotated, _rotated_back)


def _quarter_turn(x_BTNH: Array) -> Array:
    """Return the matrix [H, H] that turns (first, second) into (-second, first)."""
    H = x_BTNH.shape[-1]
    half = jnp.eye(H // 2, dtype=x_BTNH.dtype)
    none = jnp.zeros_like(half)
    return jnp.block([[none, half], [-half, none]])
