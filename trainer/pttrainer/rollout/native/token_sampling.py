"""The next token from logits, and the random number that picks it.

Letters: B rows, V vocabulary, C tokens of a block, K blocks.

One uniform number per row and token, folded from (seed, step, prompt, sample, position), and the inverse of
the cumulative distribution. That is exact in distribution and needs one random number where Gumbel's trick
needs V of them, which on a CPU cost more than the model. The cumulative sum goes over blocks first and
then within one block, so that it reads the logits twice and not log V times.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.rollout.engine import Sampling

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
    V = logits_BV.shape[1]
    logits_BV = _cooled(logits_BV, sampling)
    allowed_BV = None if allowed_BV is None else _cooled(allowed_BV, sampling)
    weights_BKC, highest_B11 = _weights(logits_BV)
    drawn_BKC, drawn_highest_B11 = (weights_BKC, highest_B11) if allowed_BV is None else _weights(allowed_BV)
    if sampling.greedy:
        blocks_BKC = _blocks(logits_BV if allowed_BV is None else allowed_BV)
        token_B = _first_highest(blocks_BKC, drawn_highest_B11)
    elif sampling.truncates:
        kept_BV = _truncated(logits_BV if allowed_BV is None else allowed_BV, sampling)
        token_B = _draw(_blocks(kept_BV, 0.0), uniform_B)
    else:
        token_B = _draw(drawn_BKC, uniform_B)
    token_B = jnp.minimum(token_B, V - 1)
    chosen_B = jnp.take_along_axis(logits_BV, token_B[:, None], axis=1)[:, 0]
    return token_B, chosen_B - highest_B11[:, 0, 0] - jnp.log(jnp.sum(weights_BKC, axis=(1, 2)))


def _cooled(logits_BV: Array, sampling: Sampling) -> Array:
    return logits_BV if sampling.greedy or sampling.temperature == 1.0 else logits_BV / sampling.temperature


def _weights(logits_BV: Array) -> tuple[Array, Array]:
    """Return probabilities up to a factor per row, in blocks, and the highest logit."""
    blocks_BKC = _blocks(logits_BV)
    highest_B11 = jnp.max(blocks_BKC, axis=(1, 2), keepdims=True)
    return jnp.exp(blocks_BKC - highest_B11), highest_B11


def _blocks(x_BV: Array, padding: float = -jnp.inf) -> Array:
    B, V = x_BV.shape
    return jnp.pad(x_BV, ((0, 0), (0, -V % BLOCK)), constant_values=padding).reshape(B, -1, BLOCK)


def _draw(weights_BKC: Array, uniform_B: Array) -> Array:
    """Return the first token whose cumulative weight exceeds uniform · total."""
    block_BK = jnp.sum(weights_BKC, axis=2)
    upto_BK = jnp.cumsum(block_BK, axis=1)
    goal_B1 = uniform_B[:, None] * upto_BK[:, -1:]
    k_B = _first_above(upto_BK, goal_B1, block_BK)
    inside_BC = jnp.take_along_axis(weights_BKC, k_B[:, None, None], axis=1)[:, 0]
    before_B1 = jnp.take_along_axis(upto_BK - block_BK, k_B[:, None], axis=1)
    c_B = _first_above(before_B1 + jnp.cumsum(inside_BC, axis=1), goal_B1, inside_BC)
    return k_B * BLOCK + c_B


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
