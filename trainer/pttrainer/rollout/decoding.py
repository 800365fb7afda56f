"""Token by token on the devices: the state of the rows that are being sampled, and what is compiled of it.

Letters: B rows, P prompts, G samples per prompt, S slots, C tokens of a chunk, D model, V vocabulary.

    prefill   prompts, right-padded, in one pass; leaves their keys and values and the state after their end
    spread    every prompt gets G rows that read its one copy of keys and values
    admit     rows that are free take over prompts, each with a copy of its own (`spread` with G = 1 first)
    advance   samples until a number of tokens, or until only so many rows are still active
    room      more slots, or the slots that no active row needs any more

Rows share one clock: the newest token of every row stands in the same slot, wherever the row began. So a
token is written by one contiguous update, and a row that takes over a slot only has to forget what stood
there. Sampling comes last in each round (decode, then choose), so no token is computed that is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer import sharding
from pttrainer.models import Model, Params
from pttrainer.models import cache as kv
from pttrainer.rollout.choose import choose, row_keys, uniforms
from pttrainer.rollout.protocol import Sampling


class Padded(NamedTuple):
    """Right-padded prompts, as they come from the host."""

    tokens_PS: Any
    lengths_P: Any
    numbers_P: Any
    limits_P: Any


class Prefilled(NamedTuple):
    """Prompts that were computed. hidden_PD: the state from which the first token is sampled."""

    cache: kv.KVCache
    hidden_PD: Array
    lengths_P: Array
    numbers_P: Array
    limits_P: Array


class Rows(NamedTuple):
    """What every row needs for its next token. counts_B: tokens so far; births_B: its first slot."""

    cache: kv.KVCache
    keys_B: Array
    starts_B: Array
    limits_B: Array
    counts_B: Array
    births_B: Array
    last_B: Array
    active_B: Array


class Chunk(NamedTuple):
    """Tokens that were sampled, for the host: row b's are the first taken_B[b] of its line.

    clock: the slot of the next token; oldest: the first slot that an active row needs.
    """

    tokens_BC: Array
    logps_BC: Array
    taken_B: Array
    ended_B: Array
    active_B: Array
    clock: Array
    oldest: Array


@dataclass(frozen=True)
class Decoding:
    """The compiled functions' static part."""

    model: Model
    eos_ids: tuple[int, ...]
    how: Sampling

    def prefill(self, weights: Params, padded: Padded) -> Prefilled:
        """All prompts in one pass."""
        P, S = padded.tokens_PS.shape
        slot_S = jnp.arange(S)
        positions_PS = jnp.where(slot_S < padded.lengths_P[:, None], slot_S, kv.EMPTY)
        cache = kv.empty(self.model.config, P, S, self.model.compute_dtype)
        hidden_PSD, cache = self.model.decode(weights, padded.tokens_PS, positions_PS, cache)
        hidden_PD = jnp.take_along_axis(hidden_PSD, padded.lengths_P[:, None, None] - 1, axis=1)[:, 0]
        return Prefilled(cache, hidden_PD, *padded[1:])

    def spread(
        self, samples: int, slots: int, weights: Params, prompts: Prefilled, seed: Array, step: Array
    ) -> tuple[Rows, Chunk]:
        """Every prompt with its G rows, and their first tokens."""
        per_row = partial(jnp.repeat, repeats=samples, axis=0)
        P = prompts.hidden_PD.shape[0]
        numbers_B, samples_B = per_row(prompts.numbers_P), jnp.tile(jnp.arange(samples), P)
        cache = kv.share(self.model.config, prompts.cache, samples, slots)
        zeros_B = jnp.zeros(P * samples, jnp.int32)
        rows = Rows(
            cache=cache,
            keys_B=row_keys(seed, step, numbers_B, samples_B),
            starts_B=per_row(prompts.lengths_P),
            limits_B=per_row(prompts.limits_P),
            counts_B=zeros_B,
            births_B=zeros_B,
            last_B=zeros_B,
            active_B=per_row(prompts.limits_P) > 0,
        )
        return self._first(weights, rows, per_row(prompts.hidden_PD), rows.active_B)

    def admit(
        self,
        weights: Params,
        rows: Rows,
        prompts: Prefilled,
        places_A: Array,
        sources_A: Array,
        samples_A: Array,
        count: Array,
        seed: Array,
        step: Array,
    ) -> tuple[Rows, Chunk]:
        """Row places_A[i] becomes sample samples_A[i] of prompt sources_A[i], for the first `count` entries."""
        keys_A = row_keys(seed, step, prompts.numbers_P[sources_A], samples_A)

        def take_over(i: Array, carried: tuple[Rows, Array]) -> tuple[Rows, Array]:
            rows, hidden_BD = carried
            b, p = places_A[i], sources_A[i]
            rows = rows._replace(
                cache=_with_prompt(rows.cache, prompts.cache, b, p),
                keys_B=rows.keys_B.at[b].set(keys_A[i]),
                starts_B=rows.starts_B.at[b].set(prompts.lengths_P[p]),
                limits_B=rows.limits_B.at[b].set(prompts.limits_P[p]),
                counts_B=rows.counts_B.at[b].set(0),
                births_B=rows.births_B.at[b].set(rows.cache.index),
                active_B=rows.active_B.at[b].set(prompts.limits_P[p] > 0),
            )
            return rows, hidden_BD.at[b].set(prompts.hidden_PD[p])

        B, D = rows.last_B.shape[0], prompts.hidden_PD.shape[1]
        rows, hidden_BD = lax.fori_loop(0, count, take_over, (rows, jnp.zeros((B, D), prompts.hidden_PD.dtype)))
        new_B = jnp.zeros(B, bool).at[places_A].max(jnp.arange(places_A.shape[0]) < count)
        return self._first(weights, rows, hidden_BD, new_B & rows.active_B)

    def advance(self, weights: Params, rows: Rows, until: Array, floor: Array) -> tuple[Rows, Chunk]:
        """Up to `until` tokens more, while more than `floor` rows are active."""
        B, C = rows.cache.positions_BS.shape
        nothing = Chunk(
            tokens_BC=jnp.zeros((B, C), jnp.int32),
            logps_BC=jnp.zeros((B, C), jnp.float32),
            taken_B=jnp.zeros(B, jnp.int32),
            ended_B=jnp.zeros(B, bool),
            active_B=rows.active_B,
            clock=jnp.zeros((), jnp.int32),
            oldest=jnp.zeros((), jnp.int32),
        )

        def is_wanted(carried: tuple[Rows, Chunk]) -> Array:
            rows, chunk = carried
            return (chunk.clock < until) & (jnp.sum(rows.active_B) > floor)

        def round_(carried: tuple[Rows, Chunk]) -> tuple[Rows, Chunk]:
            rows, chunk = carried
            positions_B = jnp.where(rows.active_B, rows.starts_B + rows.counts_B - 1, kv.EMPTY)
            hidden_B1D, cache = self.model.decode(weights, rows.last_B[:, None], positions_B[:, None], rows.cache)
            taking_B = rows.active_B
            rows, logp_B, ended_B = self._sample(weights, rows._replace(cache=cache), hidden_B1D[:, 0], taking_B)
            at = (0, chunk.clock)
            chunk = chunk._replace(
                tokens_BC=lax.dynamic_update_slice(chunk.tokens_BC, rows.last_B[:, None], at),
                logps_BC=lax.dynamic_update_slice(chunk.logps_BC, logp_B[:, None], at),
                taken_B=chunk.taken_B + taking_B,
                ended_B=chunk.ended_B | ended_B,
                clock=chunk.clock + 1,
            )
            return rows, chunk

        rows, chunk = lax.while_loop(is_wanted, round_, (rows, nothing))
        return rows, _watched(rows, chunk)

    def _first(self, weights: Params, rows: Rows, hidden_BD: Array, taking_B: Array) -> tuple[Rows, Chunk]:
        """The first token of rows that have just begun."""
        rows, logp_B, ended_B = self._sample(weights, rows, hidden_BD, taking_B)
        clock = oldest = jnp.zeros((), jnp.int32)
        taken_B = taking_B.astype(jnp.int32)
        chunk = Chunk(rows.last_B[:, None], logp_B[:, None], taken_B, ended_B, rows.active_B, clock, oldest)
        return rows, _watched(rows, chunk)

    def _sample(self, weights: Params, rows: Rows, hidden_BD: Array, taking_B: Array) -> tuple[Rows, Array, Array]:
        """The next token of the rows that take one, its log-prob, and whether it is an end token."""
        logits_BV = self._logits(weights, hidden_BD)
        if self.how.min_new_tokens:
            is_early_B = rows.counts_B + 1 < self.how.min_new_tokens
            penalty_B1 = jnp.where(is_early_B, -jnp.inf, 0.0)[:, None]
            logits_BV = logits_BV.at[:, jnp.array(self.eos_ids)].add(penalty_B1)
        token_B, logp_B = choose(logits_BV, uniforms(rows.keys_B, rows.counts_B), self.how)
        token_B = jnp.where(taking_B, token_B.astype(jnp.int32), rows.last_B)
        ended_B = taking_B & jnp.isin(token_B, jnp.array(self.eos_ids))
        counts_B = rows.counts_B + taking_B
        is_over_B = taking_B & (ended_B | (counts_B >= rows.limits_B))
        return rows._replace(last_B=token_B, counts_B=counts_B, active_B=rows.active_B & ~is_over_B), logp_B, ended_B

    def _logits(self, weights: Params, hidden_BD: Array) -> Array:
        """[B, V] float32. Written as head · hidden, which on a CPU is up to twice as fast for a few rows."""
        head_VD = self.model.head(weights)
        logits_VB = jnp.einsum("vd,bd->vb", head_VD, hidden_BD, preferred_element_type=jnp.float32)
        logits_BV: Array = lax.optimization_barrier(logits_VB).T
        cap = self.model.config.final_softcap
        return logits_BV if cap is None else cap * jnp.tanh(logits_BV / cap)


def stop(rows: Rows, active_B: Array) -> Rows:
    """Ends rows on the host's word (it found a stop string)."""
    return rows._replace(active_B=rows.active_B & active_B)


def room(slots: int, rows: Rows, drop: Array) -> Rows:
    """Forgets the first `drop` slots of every row, and makes them `slots` in all."""
    cache = rows.cache
    S = cache.positions_BS.shape[1]
    kept_S = jnp.arange(S) < S - drop

    def shifted(x: Array) -> Array:
        return jnp.roll(x, -drop, axis=2)

    layers = tuple(kv.LayerKV(shifted(layer.k_BKSH), shifted(layer.v_BKSH)) for layer in cache.layers)
    positions_BS = jnp.where(kept_S, jnp.roll(cache.positions_BS, -drop, axis=1), kv.EMPTY)
    cache = cache._replace(layers=layers, positions_BS=positions_BS, index=cache.index - drop)
    return rows._replace(cache=kv.grow(cache, slots), births_B=rows.births_B - drop)


def _with_prompt(cache: kv.KVCache, prompts: kv.KVCache, b: Array, p: Array) -> kv.KVCache:
    """Row b reads a copy of prompt p, and nothing that stood in its slots before."""
    assert cache.prompt is not None

    def put(old: Array, new: Array) -> Array:
        one = lax.dynamic_slice_in_dim(new, p, 1, axis=0)
        return lax.dynamic_update_slice_in_dim(old, one, b, axis=0)

    layers = tuple(
        kv.LayerKV(put(old.k_BKSH, new.k_BKSH), put(old.v_BKSH, new.v_BKSH))
        for old, new in zip(cache.prompt.layers, prompts.layers, strict=True)
    )
    positions_PS = put(cache.prompt.positions_PS, prompts.positions_BS)
    return cache._replace(
        prompt=kv.SharedPrompt(layers, positions_PS), positions_BS=cache.positions_BS.at[b].set(kv.EMPTY)
    )


def _watched(rows: Rows, chunk: Chunk) -> Chunk:
    """With what the host decides on, whole on every device: active rows, the clock, the oldest row's first slot."""
    oldest = jnp.min(jnp.where(rows.active_B, rows.births_B, rows.cache.index))
    small = (rows.active_B, rows.cache.index, oldest)
    active_B, clock, oldest = (sharding.constrain(x, (None,) * x.ndim) for x in small)
    return chunk._replace(active_B=active_B, clock=clock, oldest=oldest)


def jitted(decoding: Decoding) -> dict[str, Any]:
    """The functions, compiled when they are first called with a shape; states are donated."""
    return {
        "prefill": jax.jit(decoding.prefill),
        "spread": jax.jit(decoding.spread, static_argnums=(0, 1)),
        "admit": jax.jit(decoding.admit, donate_argnums=1),
        "advance": jax.jit(decoding.advance, donate_argnums=1),
        "room": jax.jit(room, static_argnums=0),
        "stop": jax.jit(stop, donate_argnums=0),
    }
