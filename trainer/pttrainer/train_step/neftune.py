"""NEFTune (arXiv 2310.05914): uniform noise on the embeddings of training inputs, and on nothing else.

    x  becomes  x + alpha / √(L · D) · u        u uniform in [−1, 1], per element

L is the length of the example that a token belongs to, as in the authors' code: packing and padding do not change the
noise's size. It is added to what is looked up, before families that scale embeddings scale them. Keys are folded from
(seed, step, row of the batch), so micro-batches, devices and resumed runs draw the same noise; evaluation, scoring and
rollout draw none.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.batch import Batch


class Noise(NamedTuple):
    """The size of the noise, and the run's seed."""

    alpha: float
    seed: int


def numbered(batch: Batch) -> Batch:
    """Return the batch with the number of each row, which rows keep when split into micro-batches."""
    return batch._replace(row_BT=jax.lax.broadcasted_iota(jnp.int32, batch.tokens_BT.shape, 0))


def added(noise: Noise, step: Array, part: Batch) -> Callable[[Array], Array]:
    """Return a function from the embeddings of a numbered batch, or of a part of it, to noisy ones."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(noise.seed), step), 0x4E4546)

    def draw(row: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, row), shape, jnp.float32, minval=-1.0, maxval=1.0)

    def add(x_BTD: Array) -> Array:
        shape = x_BTD.shape[1:]
        size_BT = noise.alpha * jax.lax.rsqrt(lengths(part.segment_ids_BT) * shape[-1])
        noise_BTD = jax.vmap(lambda row: draw(row, shape))(part.row_BT[:, 0]) * size_BT[..., None]
        return x_BTD + noise_BTD.astype(x_BTD.dtype)

    return add


def lengths(segment_ids_BT: Array) -> Array:
    """Return the length of the example that each token belongs to, float32."""

    def row(segments_T: Array) -> Array:
        counts = jnp.zeros(segments_T.shape[0] + 1, jnp.float32).at[segments_T].add(1.0)
        return counts[segments_T]

    return jax.vmap(row)(segment_ids_BT)
