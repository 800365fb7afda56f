"""The next token from logits, and the random number that picks it.

Letters: B rows, V vocabulary, C tokens of a block, K blocks.

One uniform number per row and token, folded from (seed, step, prompt, sample, position), and the inverse of
the cumulative distribution. That is exact in distribution and needs one random number where Gumbel's trick
needs V of them, which on a CPU cost more than the model. The cumulative sum goes over blocks first and
then within one block, so that it reads the logits twice and not log V times.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.rollout.engine import Sampling
from pttrainer.runtime.distributed import sharding

BLOCK = 128


def row_keys(seed: int | Array, step: int | Array, prompts_B: Array, samples_B: Array) -> Array:
    """Return a key per row; a row's key does not depend on the other rows."""
    of_step = jax.random.fold_in(jax.random.key(seed), step)
    of_prompt_B = jax.vmap(partial(jax.random.fold_in, of_step))(prompts_B)
    return jax.vmap(jax.random.fold_in)(of_prompt_B, samples_B)


def uniforms(keys_B: Array, position: Array) -> Array:
    """Return a number in [0, 1) per row, for the token at this position of the completion (a scalar, or [B])."""
    positions_B = jnp.broadcast_to(position, keys_B.shape)
    return jax.vmap(lambda key, position: jax.random.uniform(jax.random.fold_in(key, position)))(keys_B, positions_B)


def choose(
    logits_BV: Array, uniform_B: Array, sampling: Sampling, allowed_BV: Array | None = None
) -> tuple[Array, Array]:
    """Return token and log-prob per row; logits are float32, before division by the temperature.

    allowed_BV: the logits with those of forbidden tokens at -inf. They change which token is drawn, not the
    log-prob, which is the model's: so do top_k, top_p and min_p.
    """
    blocks = _Blocks.of(logits_BV.shape[1])
    logits_BV = _cooled(logits_BV, sampling)
    own = blocks.weighed(logits_BV)
    drawn_BV, drawn = logits_BV, own
    if allowed_BV is not None:
        drawn_BV = _cooled(allowed_BV, sampling)
        drawn = blocks.weighed(drawn_BV)
    if sampling.greedy:
        k_B, c_B = jnp.divmod(_first_highest(drawn.logits_BKC, drawn.highest_B11), BLOCK)
    elif sampling.truncates:
        kept_BKC = blocks.cut(_truncated(drawn_BV, sampling), 0.0)
        k_B, c_B = _draw(blocks.sums(kept_BKC), uniform_B, partial(blocks.block, kept_BKC))
    else:

        def inside(k_B: Array) -> Array:
            if blocks.has_gathers:
                return blocks.block(drawn.weights_BKC, k_B)
            return jnp.exp(blocks.block(drawn.logits_BKC, k_B) - drawn.highest_B11[:, 0])  # the block is read anyway

        k_B, c_B = _draw(drawn.sums_BK, uniform_B, inside)
    chosen_B = jnp.take_along_axis(blocks.block(own.logits_BKC, k_B), c_B[:, None], axis=1)[:, 0]
    total_B = jnp.sum(own.weights_BKC, axis=(1, 2)) if blocks.has_gathers else jnp.sum(own.sums_BK, axis=1)
    return blocks.token(k_B, c_B), chosen_B - own.highest_B11[:, 0, 0] - jnp.log(total_B)


class _Weighed(NamedTuple):
    """Logits in blocks, the highest of each row, probabilities up to a factor, and their sums by block."""

    logits_BKC: Array
    highest_B11: Array
    weights_BKC: Array
    sums_BK: Array


class _Blocks(NamedTuple):
    """How a vocabulary is cut into blocks. parts: of it, on as many devices; each is filled up to whole blocks.

    has_gathers: whether entries are read by a gather. A TPU's gather would have the whole array copied into another
    order, and over several parts it would bring all of them to each device; so there a pass over all entries keeps
    those of one block.
    """

    vocab: int
    parts: int
    has_gathers: bool

    @classmethod
    def of(cls, vocab: int) -> "_Blocks":
        """Return the blocks of a vocabulary that the mesh in context splits."""
        parts = sharding.parts("vocab")
        parts = 1 if vocab % parts else parts
        return cls(vocab, parts, parts == 1 and sharding.chip()[0] != "tpu")

    def cut(self, x_BV: Array, padding: float = -jnp.inf) -> Array:
        """Return the blocks of an array."""
        B = x_BV.shape[0]
        x_BPV = x_BV.reshape(B, self.parts, -1)
        filled = jnp.pad(x_BPV, ((0, 0), (0, 0), (0, -x_BPV.shape[2] % BLOCK)), constant_values=padding)
        return filled.reshape(B, -1, BLOCK)

    def weighed(self, logits_BV: Array) -> _Weighed:
        """Return logits in blocks, and what is drawn by."""
        logits_BKC = self.cut(logits_BV)
        highest_B11 = jnp.max(logits_BKC, axis=(1, 2), keepdims=True)
        weights_BKC = jnp.exp(logits_BKC - highest_B11)
        return _Weighed(logits_BKC, highest_B11, weights_BKC, self.sums(weights_BKC))

    def token(self, k_B: Array, c_B: Array) -> Array:
        """Return the tokens at these places in their blocks."""
        of_part = self.vocab // self.parts
        part_B, k_B = jnp.divmod(k_B, -(-of_part // BLOCK))
        return jnp.minimum(part_B * of_part + jnp.minimum(k_B * BLOCK + c_B, of_part - 1), self.vocab - 1)

    def block(self, x_BKC: Array, k_B: Array) -> Array:
        """Return a block of each row."""
        if self.has_gathers:
            return jnp.take_along_axis(x_BKC, k_B[:, None, None], axis=1)[:, 0]
        is_it_BK1 = (jnp.arange(x_BKC.shape[1]) == k_B[:, None])[:, :, None]
        return jnp.sum(jnp.where(is_it_BK1, x_BKC, 0), axis=1)

    def sums(self, weights_BKC: Array) -> Array:
        """Return the sum of each block, on all devices that have a part."""
        return sharding.constrain_fitting(jnp.sum(weights_BKC, axis=2), ("batch", None))


def _cooled(logits_BV: Array, sampling: Sampling) -> Array:
    return logits_BV if sampling.greedy or sampling.temperature == 1.0 else logits_BV / sampling.temperature


def _draw(block_BK: Array, uniform_B: Array, inside: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return block and place of the first entry at which the cumulative weight exceeds uniform · total.

    block_BK: the weight of each block. inside: returns the weights of a block of each row.
    """
    upto_BK = jnp.cumsum(block_BK, axis=1)
    goal_B1 = uniform_B[:, None] * upto_BK[:, -1:]
    k_B = _first_above(upto_BK, goal_B1, block_BK)
    inside_BC = inside(k_B)
    before_B1 = jnp.take_along_axis(upto_BK - block_BK, k_B[:, None], axis=1)
    c_B = _first_above(before_B1 + jnp.cumsum(inside_BC, axis=1), goal_B1, inside_BC)
    return k_B, c_B


def _first_above(upto_BX: Array, goal_B1: Array, weights_BX: Array) -> Array:
    """Return the index of the first sum above the goal, or the last with any weight if rounding leaves none."""
    X = upto_BX.shape[1]
    last_B = X - 1 - jnp.argmax(weights_BX[:, ::-1] > 0, axis=1)
    return jnp.minimum(jnp.sum(upto_BX <= goal_B1, axis=1), last_B)


def _first_highest(blocks_BKC: Array, highest_B11: Array) -> Array:
    """Return the argmax, written as reductions that compilers vectorise."""
    B = blocks_BKC.shape[0]
    index_V = jnp.arange(blocks_BKC.shape[1] * BLOCK).reshape(1, -1, BLOCK)
    return jnp.min(jnp.where(blocks_BKC == highest_B11, index_V, index_V.size), axis=(1, 2)).reshape(B)


def _truncated(logits_BV: Array, sampling: Sampling) -> Array:
    """Return probabilities, 0 for tokens that top_k, top_p or min_p exclude.

    top_k keeps the k most likely, top_p the smallest set with that probability, min_p those with at least min_p
    times the highest. All three look at the whole distribution.
    """
    probs_BV = jax.nn.softmax(logits_BV, axis=1)
    if sampling.min_p:
        is_likely_BV = probs_BV >= sampling.min_p * jnp.max(probs_BV, axis=1, keepdims=True)
        probs_BV = jnp.where(is_likely_BV, probs_BV, 0.0)
    if not sampling.top_k and sampling.top_p == 1.0:
        return probs_BV
    V = logits_BV.shape[1]
    order_BV = jnp.argsort(-probs_BV, axis=1, stable=True)
    sorted_BV = jnp.take_along_axis(probs_BV, order_BV, axis=1)
    before_BV = jnp.cumsum(sorted_BV, axis=1) - sorted_BV
    kept_BV = (before_BV < sampling.top_p) & (jnp.arange(V) < (sampling.top_k or V))
    back_BV = jnp.argsort(order_BV, axis=1)
    return jnp.where(jnp.take_along_axis(kept_BV, back_BV, axis=1), probs_BV, 0.0)
