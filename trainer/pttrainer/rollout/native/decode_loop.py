"""Token by token on the devices: prompts, rounds of decoding, and the functions compiled for them (`row_changes`).

Letters: B rows, P prompts, G samples per prompt, N = P·G, S slots, T tokens of a dispatch, D model, V vocabulary.

    prefill   prompts, right-padded, piece by piece; returns their keys and values and the state after their end
    advance   samples a number of tokens; a row that ends takes over the next sample of a pool at once

A round is: free rows take over samples; every active row samples a token from its state; the tokens are decoded, which
makes the next state. So taking over costs the copy of a prompt and nothing else, needs no message from the host, and no
program but this one. Rows share one clock (`models.attention.kv_cache`). With a proposer (`rollout.speculative`) a
round decodes its proposals too and accepts those that hold; then each row has a clock of its own.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ptapi.accelerators import compiler_flags
from pttrainer.models import Model, Params
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.splash_blocks import GENERATIONS
from pttrainer.models.decoding import decode_backend
from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.native import cache_layout, row_changes
from pttrainer.rollout.native.decode_state import NO_OWNER, DecodeProgress, Pool, Rows, SampledTokens, append_tokens
from pttrainer.rollout.native.prefill import PaddedPrompts, prefill_prompts, routes_like
from pttrainer.rollout.native.prefix_reuse import page_store
from pttrainer.rollout.native.token_sampling import choose, row_keys, uniforms
from pttrainer.rollout.speculative.verify import ProposalRequest, Proposer, verify
from pttrainer.runtime.distributed import sharding

DISPATCH_TOKENS = 64
"""Most tokens of a row per dispatch, before the host sees any."""
WEIGHTS_AS_STORED = {"TPU7x": {"xla_tpu_control_large_2nd_minor_layout_for_x16": "false"}}
"""Compiler options, by device kind, with which the loop over tokens reads weights in the tiles they are stored in.

A program's arguments have tiles of 8 x 128; on tpu7x XLA prefers 16 x 128 for bfloat16 inside, so it would copy all
weights before the loop: as much memory again, for products that are no faster (docs/findings/preflight.md).
"""


@dataclass(frozen=True)
class Decoding:
    """The static part of the compiled functions. `draft` arguments: the proposer's weights, if it has any."""

    model: Model
    eos_ids: tuple[int, ...]
    how: Sampling
    proposer: Proposer | None = None

    @property
    def lines(self) -> int:
        """Return the most tokens that a row can sample in a round."""
        return 1 if self.proposer is None else 1 + self.proposer.tokens

    def prefill(
        self,
        samples: int,
        weights: Params,
        padded: PaddedPrompts,
        seed: Array,
        step: Array,
        first: Array,
        end: Array,
        draft: Params | None = None,
    ) -> Pool:
        """Compute the prompts' keys, values and last states."""
        cache, hidden_PD, routes_PSLk = prefill_prompts(self.model, weights, padded, is_routed=self.how.routes)
        pool = self.pool(samples, cache, hidden_PD, padded, seed, step, first, end, draft)
        return pool._replace(routes_PSLk=routes_PSLk)

    def pool(
        self,
        samples: int,
        cache: kv.KVCache,
        hidden_PD: Array,
        padded: PaddedPrompts,
        seed: Array,
        step: Array,
        first: Array,
        end: Array,
        draft: Params | None = None,
    ) -> Pool:
        """Return prompts, of which the model has computed this, as samples first, …, end - 1."""
        P = padded.tokens_PS.shape[0]
        numbers_N = jnp.repeat(padded.numbers_P, samples)
        samples_N = jnp.tile(jnp.arange(samples), P) if padded.samples_P is None else padded.samples_P
        keys_N = row_keys(seed, step, numbers_N, samples_N)
        proposer_state = None if self.proposer is None else self.proposer.init_prompts(draft, padded)
        pool = Pool(cache, hidden_PD, padded.lengths_P, padded.limits_P, keys_N, first, end, proposer_state)
        return pool._replace(counts_P=padded.counts_P)

    def advance(
        self, weights: Params, rows: Rows, pool: Pool | None, until: Array, floor: Array, draft: Params | None = None
    ) -> tuple[Rows, SampledTokens, DecodeProgress]:
        """Run rounds until `until` lines are sampled: one for each token that a row can sample in a round.

        floor: return as soon as only this many rows are active and the pool has no sample left.
        """
        S = cache_layout.capacity(rows.cache)
        shape = (DISPATCH_TOKENS * self.lines, rows.owners_B.shape[0])
        sampled = SampledTokens(
            tokens_TB=jnp.zeros(shape, jnp.int32),
            logps_TB=jnp.zeros(shape, jnp.float32),
            owners_TB=jnp.full(shape, NO_OWNER),
            count=jnp.zeros((), jnp.int32),
            routes_TBLk=routes_like(self.model, *shape) if self.how.routes else None,
        )

        def is_wanted(carried: tuple[Rows, SampledTokens]) -> Array:
            rows, sampled = carried
            has_capacity = self._age(rows) < S
            is_left = jnp.zeros((), bool) if pool is None else rows.drawn < pool.end
            return (sampled.count < until) & has_capacity & (is_left | (jnp.sum(rows.active_B) > floor))

        def round_(carried: tuple[Rows, SampledTokens]) -> tuple[Rows, SampledTokens]:
            rows, sampled = carried
            rows = rows if pool is None else row_changes.take_over(self.proposer, rows, pool)
            taking_B = rows.active_B
            token_B, logp_B = self._next(self.model, weights, rows.hidden_BD, rows.keys_B, rows.counts_B)
            owners_B = jnp.where(taking_B, rows.owners_B, NO_OWNER)
            counts_B = rows.counts_B + taking_B
            is_end_B = jnp.isin(token_B, jnp.array(self.eos_ids)) | (counts_B >= rows.limits_B)
            rows = rows._replace(counts_B=counts_B, active_B=taking_B & ~is_end_B)
            if self.proposer is not None:
                rows, more_LB, routes_LB = self._verify_proposals(self.proposer, weights, draft, rows, token_B)
                own, more = (None, None) if routes_LB is None else (routes_LB[:1], routes_LB[1:])
                sampled = append_tokens(sampled, token_B, logp_B, owners_B, own)
                return rows, append_tokens(sampled, *more_LB, more)
            positions_B = jnp.where(rows.active_B, rows.starts_B + counts_B - 1, kv.EMPTY)
            hidden_B1D, cache, routes = self._decode(weights, token_B[:, None], positions_B[:, None], rows.cache)
            sampled = append_tokens(sampled, token_B, logp_B, owners_B, routes)
            return rows._replace(cache=cache, hidden_BD=hidden_B1D[:, 0]), sampled

        rows, sampled = lax.while_loop(is_wanted, round_, (rows, sampled))
        return rows, sampled, self._progress(rows)

    def _decode(
        self, weights: Params, tokens_BT: Array, positions_BT: Array, cache: cache_layout.Cache
    ) -> tuple[Array, cache_layout.Cache, Array | None]:
        """Decode tokens, and return their experts [T, B, L, k], if they are recorded."""
        if not self.how.routes:
            return *self.model.decode(weights, tokens_BT, positions_BT, cache), None
        hidden_BTD, cache, routes_BTLk = self.model.decode_routed(weights, tokens_BT, positions_BT, cache)
        return hidden_BTD, cache, routes_BTLk.swapaxes(0, 1)

    def _next(
        self, model: Model, weights: Params, hidden_BD: Array, keys_B: Array, counts_B: Array
    ) -> tuple[Array, Array]:
        """Return each row's token after counts_B tokens, and its log-prob; `model` is the policy or a draft."""
        logits_BV = _logits(model, weights, hidden_BD)
        allowed_BV = None
        if self.how.min_new_tokens:
            is_early_B = counts_B + 1 < self.how.min_new_tokens
            penalty_B1 = jnp.where(is_early_B, -jnp.inf, 0.0)[:, None]
            allowed_BV = logits_BV.at[:, jnp.array(self.eos_ids)].add(penalty_B1)
        token_B, logp_B = choose(logits_BV, uniforms(keys_B, counts_B), self.how, allowed_BV)
        return token_B.astype(jnp.int32), logp_B

    def _verify_proposals(
        self, proposer: Proposer, weights: Params, draft: Params | None, rows: Rows, token_B: Array
    ) -> tuple[Rows, tuple[Array, Array, Array], Array | None]:
        """Decode the tokens just sampled together with proposals for what follows, and accept those that hold.

        Return the rows; tokens, log-probs and owners of accepted proposals, [K, B]; the experts of all [T, B, L, k].
        """
        of_rows = token_B, rows.starts_B, rows.counts_B, rows.keys_B, rows.active_B, rows.hidden_BD
        request = ProposalRequest(*of_rows, weights)
        proposals_BK, proposer_state = proposer.propose(self._next, draft, rows.proposer_state, request)
        tokens_BT = jnp.concatenate([token_B[:, None], proposals_BK], axis=1)
        ahead_T = jnp.arange(self.lines)
        positions_BT = (rows.starts_B + rows.counts_B - 1)[:, None] + ahead_T
        positions_BT = jnp.where(rows.active_B[:, None], positions_BT, kv.EMPTY)
        hidden_BTD, cache, routes = self._decode(weights, tokens_BT, positions_BT, rows.cache)
        choices_BK, logps_BK = self._choices(weights, hidden_BTD[:, :-1], rows)
        counts_BK = rows.counts_B[:, None] + 1 + ahead_T[:-1]
        is_last_BK = jnp.isin(choices_BK, jnp.array(self.eos_ids)) | (counts_BK >= rows.limits_B[:, None])
        verified = verify(proposals_BK, choices_BK, is_last_BK, rows.active_B)
        owners_BK = jnp.where(verified.is_accepted_BK, rows.owners_B[:, None], NO_OWNER)
        taken_B = jnp.where(rows.active_B, 1 + verified.counts_B, 0)
        rows = rows._replace(
            cache=cache._replace(index=rows.cache.index + taken_B),
            hidden_BD=jnp.take_along_axis(hidden_BTD, verified.counts_B[:, None, None], axis=1)[:, 0],
            counts_B=rows.counts_B + verified.counts_B,
            active_B=rows.active_B & ~verified.is_ended_B,
            proposer_state=proposer.keep(proposer_state, taken_B),
        )
        return rows, (choices_BK.T, logps_BK.T, owners_BK.T), routes

    def _choices(self, weights: Params, hidden_BKD: Array, rows: Rows) -> tuple[Array, Array]:
        """Return the model's own K tokens after those sampled so far, and their log-probs."""
        B, K, D = hidden_BKD.shape
        counts_BK = rows.counts_B[:, None] + jnp.arange(K)
        keys_Q = jnp.repeat(rows.keys_B, K)
        choices_Q, logps_Q = self._next(self.model, weights, hidden_BKD.reshape(-1, D), keys_Q, counts_BK.reshape(-1))
        return choices_Q.reshape(B, K), logps_Q.reshape(B, K)

    def _age(self, rows: Rows) -> Array:
        """Return the slots that active rows need: from the oldest row's first token on, plus proposals."""
        if self.proposer is not None:
            return jnp.max(jnp.where(rows.active_B, rows.cache.index, 0)) + self.proposer.tokens
        return rows.cache.index - jnp.min(jnp.where(rows.active_B, rows.births_B, rows.cache.index))

    def _progress(self, rows: Rows) -> DecodeProgress:
        progress = DecodeProgress(rows.active_B, rows.owners_B, rows.drawn, self._age(rows))
        return DecodeProgress(*(sharding.constrain(x, (None,) * x.ndim) for x in progress))


def _logits(model: Model, weights: Params, hidden_BD: Array) -> Array:
    """Return [B, V] float32. Behind a vocabulary that `tensor` does not divide are as many of -inf as make it equal."""
    head_VD = model.head(weights)
    filled_VD = sharding.in_equal_parts(head_VD, "vocab")
    logits_BV = model.capped(decode_backend.logits(weights, filled_VD, hidden_BD))
    if len(filled_VD) == len(head_VD):
        return logits_BV
    return jnp.where(jnp.arange(len(filled_VD)) < len(head_VD), logits_BV, -jnp.inf)


def jitted(decoding: Decoding, device_kind: str) -> dict[str, Any]:
    """Return the functions, compiled at their first call with a shape; states are donated."""
    options = WEIGHTS_AS_STORED.get(device_kind)
    return {
        "prefill": jax.jit(decoding.prefill, static_argnums=0, compiler_options=_options("prefill", device_kind)),
        "empty_pages": jax.jit(partial(page_store.empty, decoding.model), static_argnums=0),
        "fill_pages": jax.jit(partial(page_store.fill, decoding.model), donate_argnums=1, compiler_options=options),
        "copy_pages": jax.jit(page_store.copy, static_argnums=0, donate_argnums=3),
        "pool": jax.jit(decoding.pool, static_argnums=0, donate_argnums=1),
        "spread": jax.jit(partial(row_changes.spread, decoding.model, decoding.proposer), static_argnums=(0, 1)),
        "idle": jax.jit(partial(row_changes.idle, decoding.model, decoding.proposer), static_argnums=(0, 1)),
        "advance": jax.jit(decoding.advance, donate_argnums=1, compiler_options=_options("decode", device_kind)),
        "lengthen": jax.jit(row_changes.lengthen, static_argnums=0),
        "grow": jax.jit(partial(row_changes.grow, decoding.proposer), static_argnums=0),
        "shrink": jax.jit(partial(row_changes.shrink, decoding.proposer), static_argnums=0),
        "take_over": jax.jit(partial(row_changes.take_over, decoding.proposer), donate_argnums=0),
        "widen": jax.jit(partial(row_changes.widen, decoding.proposer), static_argnums=0),
        "stop": jax.jit(row_changes.stop, donate_argnums=0),
    }


def _options(program: compiler_flags.SamplerProgram, device_kind: str) -> dict[str, Any] | None:
    """Return the compiler options of a program in which the model runs, where it has any of its own."""
    current = compiler_flags.named(os.environ.get(compiler_flags.LIBTPU_INIT_ARGS, ""))
    flags = compiler_flags.of_sampling(program, GENERATIONS.get(device_kind, ""), current)
    return {**WEIGHTS_AS_STORED.get(device_kind, {}), **flags} or None
