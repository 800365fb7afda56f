"""Which tokens a query of sparse attention sees: those that an indexer scores highest (arXiv 2512.02556).

    score(t, s) = Σ_i weight(t, i) · relu(q(t, i) · k(s)) / √(I·E)        the `keep` highest of the visible s are seen

Tokens with the score of the last of them are seen, too, so that a choice depends on no layout. Nothing learns from a
choice: the indexer has no gradient here, as in transformers.

Letters: B rows, P prompts, T query tokens, S keys, I heads of the indexer, E elements of one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models.attention.dot_product import MASKED_SCORE, query_block


class Queries(NamedTuple):
    """What an indexer asks with: its heads' queries, already rotated, and the weight of each, which has the scale."""

    q_BTIE: Array
    weights_BTI: Array


def scores(queries: Queries, k_BES: Array) -> Array:
    """Return [B, T, S] in float32; of keys that G rows share, [P, E, S], the same for these rows."""
    B, T, heads, E = queries.q_BTIE.shape
    P = k_BES.shape[0]
    q_PXIE = queries.q_BTIE.reshape(P, B // P * T, heads, E).astype(jnp.float32)
    weights_PXI = queries.weights_BTI.reshape(P, B // P * T, heads)
    products = jax.nn.relu(jnp.einsum("bxie,bes->bxis", q_PXIE, k_BES.astype(jnp.float32)))
    return jnp.einsum("bxi,bxis->bxs", weights_PXI, products).reshape(B, T, -1)


def highest(scores_BTS: Array, mask_BTS: Array, keep: int) -> Array:
    """Return the mask of the visible tokens that are among the `keep` highest, all of them if there are no more."""
    if scores_BTS.shape[-1] <= keep:
        return mask_BTS
    visible = jnp.where(mask_BTS, scores_BTS, MASKED_SCORE)
    lowest = jax.lax.top_k(visible, keep)[0][..., -1:]
    return mask_BTS & (visible >= lowest)


def packed(queries: Queries, k_BTE: Array, mask_BTT: Array, keep: int) -> Array:
    """Return the mask of packed rows in which each query sees what the indexer chooses.

    Scores of long rows do not exist at once: blocks of queries follow each other.
    """
    B, T, heads, _ = queries.q_BTIE.shape
    if keep >= T:
        return mask_BTT
    k_BET, block = k_BTE.swapaxes(1, 2), query_block(B, T, heads)

    def blocks(x_BTX: Array) -> Array:
        return jnp.moveaxis(x_BTX.reshape(B, T // block, block, *x_BTX.shape[2:]), 1, 0)

    def of_block(inputs: tuple[Queries, Array]) -> Array:
        return highest(scores(inputs[0], k_BET), inputs[1], keep)

    chosen = jax.lax.map(of_block, (Queries(*map(blocks, queries)), blocks(mask_BTT)))
    return jnp.moveaxis(chosen, 0, 1).reshape(B, T, T)


def cached(
    queries: Queries, own: tuple[Array, Array], prompt: tuple[Array, Array] | None, keep: int
) -> tuple[Array, Array | None]:
    """Return the masks of a row's own slots and of its prompt's, which are chosen from together.

    own, prompt: the indexer's keys [B, E, S], or [P, E, S], and the mask [B, T, S].
    """
    parts = [own] if prompt is None else [own, prompt]
    all_scores = jnp.concatenate([scores(queries, keys) for keys, _ in parts], axis=-1)
    chosen = highest(all_scores, jnp.concatenate([mask for _, mask in parts], axis=-1), keep)
    slots = own[1].shape[-1]
    return chosen[..., :slots], None if prompt is None else chosen[..., slots:]
