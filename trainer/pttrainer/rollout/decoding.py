"""Token by token on the devices: the state of the rows that are being sampled, and what is compiled of it.

Letters: B rows, P prompts, G samples per prompt, N = P·G, S slots, T tokens of a dispatch, D model, V vocabulary.

    prefill   prompts, right-padded, piece by piece; leaves their keys and values and the state after their end
    spread    every prompt gets G rows that read its one copy of keys and values
    idle      rows that do nothing yet
    advance   samples until a number of tokens; a row that ends takes over the next sample of a pool at once
    room      more slots
    fewer     the rows that are still active

A round is: rows that are free take over samples; every active row samples a token from its state; the tokens are
decoded, which makes the next state. So taking over costs the copy of a prompt and nothing else, needs no word of
the host, and no program but this one. Rows share one clock (`models.cache`).
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
from pttrainer.rollout import caching
from pttrainer.rollout.choose import choose, row_keys, uniforms
from pttrainer.rollout.protocol import Sampling

DISPATCH_TOKENS = 64
"""Most tokens of a row that are sampled before the host sees any."""
PREFILL_TOKENS = 8192
"""Tokens of all prompts together that are computed at once: bounds the memory that long prompts take."""
NOBODY = -1


class Padded(NamedTuple):
    """Right-padded prompts, as they come from the host."""

    tokens_PS: Any
    lengths_P: Any
    numbers_P: Any
    limits_P: Any


class Pool(NamedTuple):
    """Prompts that were computed, as samples first, …, end - 1 of the rollout (G for each prompt).

    hidden_PD: the state from which the first token is sampled.
    """

    cache: kv.KVCache
    hidden_PD: Array
    lengths_P: Array
    limits_P: Array
    keys_N: Array
    first: Any
    end: Any


class Rows(NamedTuple):
    """What every row needs for its next token. owners_B: the sample that a row says; counts_B: its tokens so far;
    births_B: the time of the first of them; drawn: the sample that is taken over next."""

    cache: caching.Cache
    hidden_BD: Array
    keys_B: Array
    owners_B: Array
    starts_B: Array
    limits_B: Array
    counts_B: Array
    births_B: Array
    active_B: Array
    drawn: Array


class Said(NamedTuple):
    """Tokens of a dispatch, for the host: the first `count` lines. owners_TB: whose they are, or NOBODY."""

    tokens_TB: Array
    logps_TB: Array
    owners_TB: Array
    count: Array  # type: ignore[assignment]  # hides tuple.count, which nobody calls


class Watched(NamedTuple):
    """What the host decides on, whole on every device. age: slots that the oldest active row needs."""

    active_B: Any
    owners_B: Any
    drawn: Any
    age: Any


@dataclass(frozen=True)
class Decoding:
    """The compiled functions' static part."""

    model: Model
    eos_ids: tuple[int, ...]
    how: Sampling

    def prefill(
        self, samples: int, weights: Params, padded: Padded, seed: Array, step: Array, first: Array, end: Array
    ) -> Pool:
        """The prompts' keys, values and last states."""
        P, S = padded.tokens_PS.shape
        slot_S = jnp.arange(S)
        positions_PS = jnp.where(slot_S < padded.lengths_P[:, None], slot_S, kv.EMPTY)
        piece = prefill_piece(P, S)
        cache = kv.empty(self.model.config, P, S, self.model.compute_dtype)
        hidden_PD = jnp.zeros((P, self._state_size(weights)), self.model.compute_dtype)

        def of_piece(i: Array, carried: tuple[kv.KVCache, Array]) -> tuple[kv.KVCache, Array]:
            cache, last_PD = carried
            tokens_PT, positions_PT = (
                lax.dynamic_slice_in_dim(x, i * piece, piece, axis=1) for x in (padded.tokens_PS, positions_PS)
            )
            hidden_PTD, cache = self.model.decode(weights, tokens_PT, positions_PT, cache)
            at_P = padded.lengths_P - 1 - i * piece
            here_PD = jnp.take_along_axis(hidden_PTD, jnp.clip(at_P, 0, piece - 1)[:, None, None], axis=1)[:, 0]
            return cache, jnp.where(((at_P >= 0) & (at_P < piece))[:, None], here_PD, last_PD)

        if piece == S:
            cache, hidden_PD = of_piece(jnp.int32(0), (cache, hidden_PD))
        else:
            pieces = (jnp.max(padded.lengths_P) + piece - 1) // piece
            cache, hidden_PD = lax.fori_loop(0, pieces, of_piece, (cache, hidden_PD))
        numbers_N, samples_N = jnp.repeat(padded.numbers_P, samples), jnp.tile(jnp.arange(samples), P)
        keys_N = row_keys(seed, step, numbers_N, samples_N)
        return Pool(cache, hidden_PD, padded.lengths_P, padded.limits_P, keys_N, first, end)

    def spread(self, samples: int, slots: int, pool: Pool) -> Rows:
        """Every prompt with its G rows."""
        per_row = partial(jnp.repeat, repeats=samples, axis=0)
        N = pool.keys_N.shape[0]
        zeros_B = jnp.zeros(N, jnp.int32)
        rows = Rows(
            cache=caching.shared(self.model, pool.cache, samples, slots),
            hidden_BD=per_row(pool.hidden_PD),
            keys_B=pool.keys_N,
            owners_B=jnp.arange(N, dtype=jnp.int32),
            starts_B=per_row(pool.lengths_P),
            limits_B=per_row(pool.limits_P),
            counts_B=zeros_B,
            births_B=zeros_B,
            active_B=per_row(pool.limits_P) > 0,
            drawn=pool.end,
        )
        return _laid_out(rows)

    def idle(self, rows: int, slots: int, pool: Pool) -> Rows:
        """Rows that wait for samples of prompts like the pool's."""
        zeros_B = jnp.zeros(rows, jnp.int32)
        made = Rows(
            cache=caching.idle(self.model, rows, pool.cache.positions_BS.shape[1], slots),
            hidden_BD=jnp.zeros((rows, pool.hidden_PD.shape[1]), pool.hidden_PD.dtype),
            keys_B=jnp.broadcast_to(pool.keys_N[:1], (rows,)),
            owners_B=jnp.full(rows, NOBODY),
            starts_B=zeros_B,
            limits_B=zeros_B,
            counts_B=zeros_B,
            births_B=zeros_B,
            active_B=jnp.zeros(rows, bool),
            drawn=pool.first,
        )
        return _laid_out(made)

    def advance(
        self, weights: Params, rows: Rows, pool: Pool | None, until: Array, floor: Array
    ) -> tuple[Rows, Said, Watched]:
        """Up to `until` tokens more of every row. floor: return as soon as so few rows are active and the pool has no
        sample left."""
        S = caching.room(rows.cache)
        shape = (DISPATCH_TOKENS, rows.owners_B.shape[0])
        said = Said(
            tokens_TB=jnp.zeros(shape, jnp.int32),
            logps_TB=jnp.zeros(shape, jnp.float32),
            owners_TB=jnp.full(shape, NOBODY),
            count=jnp.zeros((), jnp.int32),
        )

        def is_wanted(carried: tuple[Rows, Said]) -> Array:
            rows, said = carried
            has_room = _age(rows) < S
            is_left = jnp.zeros((), bool) if pool is None else rows.drawn < pool.end
            return (said.count < until) & has_room & (is_left | (jnp.sum(rows.active_B) > floor))

        def round_(carried: tuple[Rows, Said]) -> tuple[Rows, Said]:
            rows, said = carried
            rows = rows if pool is None else _taken_over(rows, pool)
            taking_B = rows.active_B
            token_B, logp_B = self._sample(weights, rows)
            said = _with_line(said, token_B, logp_B, jnp.where(taking_B, rows.owners_B, NOBODY))
            counts_B = rows.counts_B + taking_B
            is_end_B = jnp.isin(token_B, jnp.array(self.eos_ids)) | (counts_B >= rows.limits_B)
            rows = rows._replace(counts_B=counts_B, active_B=taking_B & ~is_end_B)
            positions_B = jnp.where(rows.active_B, rows.starts_B + counts_B - 1, kv.EMPTY)
            hidden_B1D, cache = self.model.decode(weights, token_B[:, None], positions_B[:, None], rows.cache)
            return rows._replace(cache=cache, hidden_BD=hidden_B1D[:, 0]), said

        rows, said = lax.while_loop(is_wanted, round_, (rows, said))
        return rows, said, _watched(rows)

    def _sample(self, weights: Params, rows: Rows) -> tuple[Array, Array]:
        """The next token of every row, and its log-prob."""
        logits_BV = self._logits(weights, rows.hidden_BD)
        allowed_BV = None
        if self.how.min_new_tokens:
            is_early_B = rows.counts_B + 1 < self.how.min_new_tokens
            penalty_B1 = jnp.where(is_early_B, -jnp.inf, 0.0)[:, None]
            allowed_BV = logits_BV.at[:, jnp.array(self.eos_ids)].add(penalty_B1)
        token_B, logp_B = choose(logits_BV, uniforms(rows.keys_B, rows.counts_B), self.how, allowed_BV)
        return token_B.astype(jnp.int32), logp_B

    def _logits(self, weights: Params, hidden_BD: Array) -> Array:
        """[B, V] float32. Written as head · hidden, which on a CPU is up to twice as fast for a few rows."""
        head_VD = self.model.head(weights)
        logits_VB = jnp.einsum("vd,bd->vb", head_VD, hidden_BD, preferred_element_type=jnp.float32)
        logits_BV: Array = lax.optimization_barrier(logits_VB).T
        return self.model.capped(logits_BV)

    def _state_size(self, weights: Params) -> int:
        return int(self.model.head(weights).shape[1])


def prefill_piece(prompts: int, slots: int) -> int:
    """Tokens of each prompt that are computed at once: all, or halves of it until they are few enough."""
    piece = slots
    while prompts * piece > PREFILL_TOKENS and piece % 2 == 0 and piece > 16:
        piece //= 2
    return piece


def stop(rows: Rows, active_B: Array) -> Rows:
    """Ends rows on the host's word (it found a stop string)."""
    return rows._replace(active_B=rows.active_B & active_B)


def room(slots: int, rows: Rows) -> Rows:
    """Rows with this many slots."""
    return rows._replace(cache=caching.grown(rows.cache, slots))


def fewer(count: int, rows: Rows) -> Rows:
    """`count` rows, all active ones among them."""
    chosen = jnp.argsort(~rows.active_B, stable=True)[:count]
    of_rows = {name: getattr(rows, name)[chosen] for name in Rows._fields if name not in ("cache", "drawn")}
    return _laid_out(rows._replace(cache=caching.only(rows.cache, chosen), **of_rows))


def _taken_over(rows: Rows, pool: Pool) -> Rows:
    """Free rows take over the pool's next samples, in the order of both."""
    rank_B = jnp.cumsum(~rows.active_B) - 1
    count = jnp.minimum(rank_B[-1] + 1, pool.end - rows.drawn)
    samples = pool.keys_N.shape[0] // pool.hidden_PD.shape[0]

    def one(i: Array, rows: Rows) -> Rows:
        b = jnp.argmax(~rows.active_B & (rank_B == i))
        n = rows.drawn - pool.first + i
        p = n // samples
        return rows._replace(
            cache=caching.taken_over(rows.cache, b, pool.cache, p),
            hidden_BD=rows.hidden_BD.at[b].set(pool.hidden_PD[p]),
            keys_B=rows.keys_B.at[b].set(pool.keys_N[n]),
            owners_B=rows.owners_B.at[b].set(rows.drawn + i),
            starts_B=rows.starts_B.at[b].set(pool.lengths_P[p]),
            limits_B=rows.limits_B.at[b].set(pool.limits_P[p]),
            counts_B=rows.counts_B.at[b].set(0),
            births_B=rows.births_B.at[b].set(rows.cache.index),
            active_B=rows.active_B.at[b].set(pool.limits_P[p] > 0),
        )

    rows = lax.fori_loop(0, count, one, rows)
    return rows._replace(drawn=rows.drawn + count)


def _with_line(said: Said, token_B: Array, logp_B: Array, owner_B: Array) -> Said:
    def put(of: Array, line_B: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(of, line_B[None], said.count, axis=0)

    tokens_TB, logps_TB, owners_TB = (
        put(said.tokens_TB, token_B),
        put(said.logps_TB, logp_B),
        put(said.owners_TB, owner_B),
    )
    return Said(tokens_TB, logps_TB, owners_TB, said.count + 1)


def _age(rows: Rows) -> Array:
    """Slots that active rows have written, from the first of the oldest on."""
    return rows.cache.index - jnp.min(jnp.where(rows.active_B, rows.births_B, rows.cache.index))


def _watched(rows: Rows) -> Watched:
    watched = Watched(rows.active_B, rows.owners_B, rows.drawn, _age(rows))
    return Watched(*(sharding.constrain(x, (None,) * x.ndim) for x in watched))


def _laid_out(rows: Rows) -> Rows:
    """Rows over the devices that split a batch, key heads over those that split a layer."""

    cache = caching.laid_out(rows.cache)
    return rows._replace(cache=cache, hidden_BD=sharding.constrain_fitting(rows.hidden_BD, ("batch", None)))


def jitted(decoding: Decoding) -> dict[str, Any]:
    """The functions, compiled when they are first called with a shape; states are donated."""
    return {
        "prefill": jax.jit(decoding.prefill, static_argnums=0),
        "spread": jax.jit(decoding.spread, static_argnums=(0, 1)),
        "idle": jax.jit(decoding.idle, static_argnums=(0, 1)),
        "advance": jax.jit(decoding.advance, donate_argnums=1),
        "room": jax.jit(room, static_argnums=0),
        "fewer": jax.jit(fewer, static_argnums=0),
        "stop": jax.jit(stop, donate_argnums=0),
    }
