"""Rows between rounds of `decode_loop`: made for prompts, enlarged, made fewer, ended, and given the next samples.

Letters: B rows, P prompts, G samples per prompt, N = P·G.

    spread     gives every prompt G rows that read its one copy of keys and values
    idle       creates rows that do nothing yet
    lengthen   gives a pool's prompts more slots
    take_over  gives free rows the next samples of a pool
    grow       adds slots
    shrink     keeps the rows that are still active
    widen      adds free rows
    stop       ends rows

With a proposer (`rollout.speculative`), its state of the rows changes with them, and each row has a clock of its own.
"""

from functools import partial

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models import Model
from pttrainer.models.attention import kv_cache as kv
from pttrainer.rollout.native import cache_layout
from pttrainer.rollout.native.decode_state import NO_OWNER, Pool, Rows
from pttrainer.rollout.speculative.verify import Proposer
from pttrainer.runtime.distributed import sharding


def spread(model: Model, proposer: Proposer | None, samples: int, slots: int, pool: Pool) -> Rows:
    """Return G rows for every prompt."""
    per_row = partial(jnp.repeat, repeats=samples, axis=0)
    N = pool.keys_N.shape[0]
    zeros_B = jnp.zeros(N, jnp.int32)
    rows = Rows(
        cache=cache_layout.shared(model, pool.cache, samples, slots, own_clocks=proposer is not None),
        hidden_BD=per_row(pool.hidden_PD),
        keys_B=pool.keys_N,
        owners_B=jnp.arange(N, dtype=jnp.int32),
        starts_B=per_row(pool.lengths_P),
        limits_B=per_row(pool.limits_P),
        counts_B=zeros_B,
        births_B=zeros_B,
        active_B=per_row(pool.limits_P) > 0,
        drawn=pool.end,
        proposer_state=None if proposer is None else proposer.init_rows(pool.proposer_state, samples, slots),
    )
    return _with_shardings(rows)


def idle(model: Model, proposer: Proposer | None, rows: int, slots: int, pool: Pool) -> Rows:
    """Return rows that wait for samples of prompts like the pool's."""
    prompt_slots = pool.cache.positions_BS.shape[1]
    zeros_B = jnp.zeros(rows, jnp.int32)
    idle_rows = Rows(
        cache=cache_layout.idle(model, rows, prompt_slots, slots, own_clocks=proposer is not None),
        hidden_BD=jnp.zeros((rows, pool.hidden_PD.shape[1]), pool.hidden_PD.dtype),
        keys_B=jnp.broadcast_to(pool.keys_N[:1], (rows,)),
        owners_B=jnp.full(rows, NO_OWNER),
        starts_B=zeros_B,
        limits_B=zeros_B,
        counts_B=zeros_B,
        births_B=zeros_B,
        active_B=jnp.zeros(rows, bool),
        drawn=pool.first,
        proposer_state=None if proposer is None else proposer.idle(pool.proposer_state, rows, slots),
    )
    return _with_shardings(idle_rows)


def take_over(proposer: Proposer | None, rows: Rows, pool: Pool) -> Rows:
    """Let free rows take over the pool's next samples, both in order."""
    rank_B = jnp.cumsum(~rows.active_B) - 1
    count = jnp.minimum(rank_B[-1] + 1, pool.end - rows.drawn)
    samples = pool.keys_N.shape[0] // pool.hidden_PD.shape[0]

    def one(i: Array, rows: Rows) -> Rows:
        b = jnp.argmax(~rows.active_B & (rank_B == i))
        n = rows.drawn - pool.first + i
        p = n // samples
        count = 0 if pool.counts_P is None else pool.counts_P[p]
        proposer_state = rows.proposer_state
        if proposer is not None:
            proposer_state = proposer.take_over(proposer_state, b, pool.proposer_state, p)
        return rows._replace(
            cache=cache_layout.take_over(rows.cache, b, pool.cache, p),
            hidden_BD=rows.hidden_BD.at[b].set(pool.hidden_PD[p]),
            keys_B=rows.keys_B.at[b].set(pool.keys_N[n]),
            owners_B=rows.owners_B.at[b].set(rows.drawn + i),
            starts_B=rows.starts_B.at[b].set(pool.lengths_P[p] - count),
            limits_B=rows.limits_B.at[b].set(pool.limits_P[p]),
            counts_B=rows.counts_B.at[b].set(count),
            births_B=rows.births_B.at[b].set(0 if proposer is not None else rows.cache.index),
            active_B=rows.active_B.at[b].set(pool.limits_P[p] > 0),
            proposer_state=proposer_state,
        )

    rows = lax.fori_loop(0, count, one, rows)
    return rows._replace(drawn=rows.drawn + count)


def lengthen(slots: int, pool: Pool) -> Pool:
    """Return the pool with prompts of this many slots, as rows have them that began with longer ones."""
    return pool._replace(cache=kv.grow(pool.cache, slots))


def grow(proposer: Proposer | None, slots: int, rows: Rows) -> Rows:
    """Return the rows with this many slots."""
    proposer_state = None
    if proposer is not None:
        proposer_state = proposer.grow(rows.proposer_state, slots - cache_layout.capacity(rows.cache))
    return rows._replace(cache=cache_layout.grow(rows.cache, slots), proposer_state=proposer_state)


def shrink(proposer: Proposer | None, count: int, rows: Rows) -> Rows:
    """Return `count` rows, all active ones among them."""
    return _chosen(proposer, rows, jnp.argsort(~rows.active_B, stable=True)[:count])


def widen(proposer: Proposer | None, count: int, rows: Rows) -> Rows:
    """Return `count` rows, all that there are and free ones behind them."""
    B = rows.active_B.shape[0]
    wide = _chosen(proposer, rows, jnp.minimum(jnp.arange(count), B - 1))
    return wide._replace(active_B=wide.active_B & (jnp.arange(count) < B))


def _chosen(proposer: Proposer | None, rows: Rows, chosen: Array) -> Rows:
    whole = ("cache", "drawn", "proposer_state")
    per_row_values = {name: getattr(rows, name)[chosen] for name in Rows._fields if name not in whole}
    proposer_state = None if proposer is None else proposer.select_rows(rows.proposer_state, chosen)
    return _with_shardings(
        rows._replace(
            cache=cache_layout.select_rows(rows.cache, chosen), proposer_state=proposer_state, **per_row_values
        )
    )


def stop(rows: Rows, active_B: Array) -> Rows:
    """End the rows in which the host found a stop string."""
    return rows._replace(active_B=rows.active_B & active_B)


def _with_shardings(rows: Rows) -> Rows:
    hidden_BD = sharding.constrain_fitting(rows.hidden_BD, ("batch", None))
    return rows._replace(cache=cache_layout.with_shardings(rows.cache), hidden_BD=hidden_BD)
