"""Proposals of a smaller model with the same vocabulary, which samples ahead with a cache of its own.

Letters: B rows, K proposals.

The draft draws each token as the model would, from its own predictions: same random number for the same position of
the same sample, same temperature, top_k, top_p, min_p and minimum length. So where both predict alike they draw alike,
and a draft that is the model is always right. Greedy sampling is the same with argmax.

Its cache goes as the model's does: same tokens in the same slots. The last proposal is put into it too, so that no
token is missing where all are taken.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models import Model, Params
from pttrainer.models.attention import kv_cache as kv
from pttrainer.rollout.native import cache_layout
from pttrainer.rollout.native.prefill import PaddedPrompts, prefill_prompts
from pttrainer.rollout.speculative.verify import DrawToken, ProposalRequest


class DraftState(NamedTuple):
    """The draft's cache. began_B: the rows' clocks before the pass."""

    cache: cache_layout.Cache
    began_B: Array


@dataclass(frozen=True)
class Draft:
    """A draft model as proposer. tokens: proposals of a pass."""

    tokens: int
    model: Model

    def init_prompts(self, weights: Params | None, padded: PaddedPrompts) -> kv.KVCache:
        """Return the prompts' keys and values. A draft without a tower takes an image's tokens as text."""
        assert weights is not None
        visible = padded if self.model.config.vision is not None else padded._replace(images=None)
        return prefill_prompts(self.model, weights, visible)[0]

    def init_rows(self, prompts: kv.KVCache, samples: int, slots: int) -> DraftState:
        """Return rows that share their prompts' keys and values."""
        cache = cache_layout.with_shardings(cache_layout.shared(self.model, prompts, samples, slots, own_clocks=True))
        return DraftState(cache, cache.index)

    def idle(self, prompts: kv.KVCache, rows: int, slots: int) -> DraftState:
        """Return empty rows."""
        prompt_slots = prompts.positions_BS.shape[1]
        cache = cache_layout.with_shardings(cache_layout.idle(self.model, rows, prompt_slots, slots, own_clocks=True))
        return DraftState(cache, cache.index)

    def take_over(self, state: DraftState, row: Array, prompts: kv.KVCache, which: Array) -> DraftState:
        """Let the row read a copy of the prompt."""
        return state._replace(cache=cache_layout.take_over(state.cache, row, prompts, which))

    def select_rows(self, state: DraftState, rows: Array) -> DraftState:
        """Return the state of these rows alone."""
        cache = cache_layout.with_shardings(cache_layout.select_rows(state.cache, rows))
        return DraftState(cache, cache.index)

    def grow(self, state: DraftState, more: int) -> DraftState:
        """Add slots."""
        return state._replace(cache=cache_layout.grow(state.cache, cache_layout.capacity(state.cache) + more))

    def propose(
        self, draw: DrawToken, weights: Params | None, state: DraftState, request: ProposalRequest
    ) -> tuple[Array, DraftState]:
        """Return proposals_BK, sampled one after the other."""
        assert weights is not None
        draft = weights

        def fed(cache: cache_layout.Cache, token_B: Array, i: Array) -> tuple[Array, cache_layout.Cache]:
            positions_B = jnp.where(request.active_B, request.starts_B + request.counts_B - 1 + i, kv.EMPTY)
            hidden_B1D, cache = self.model.decode(draft, token_B[:, None], positions_B[:, None], cache)
            return hidden_B1D[:, 0], cache

        def one(i: Array, carried: tuple[cache_layout.Cache, Array, Array]) -> tuple[cache_layout.Cache, Array, Array]:
            cache, token_B, proposals_KB = carried
            hidden_BD, cache = fed(cache, token_B, i)
            token_B, _ = draw(self.model, draft, hidden_BD, request.keys_B, request.counts_B + i)
            return cache, token_B, proposals_KB.at[i].set(token_B)

        proposals_KB = jnp.zeros((self.tokens, *request.token_B.shape), request.token_B.dtype)
        carried = (state.cache, request.token_B, proposals_KB)
        cache, last_B, proposals_KB = lax.fori_loop(0, self.tokens, one, carried)
        _, cache = fed(cache, last_B, jnp.int32(self.tokens))
        return proposals_KB.T, DraftState(cache, state.cache.index)

    def keep(self, state: DraftState, taken_B: Array) -> DraftState:
        """Set the clocks to just after the accepted tokens."""
        return state._replace(cache=state.cache._replace(index=state.began_B + taken_B))
