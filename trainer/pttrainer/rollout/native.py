"""The engine that samples with the training model itself: same weights, same layers, a cache of keys and values.

Letters: P prompts, G samples per prompt, B = P·G rows, S prompt slots, T new tokens, D model, V vocabulary.

    start     a prompt is computed once, and its G samples read its cache
    advance   token by token in one compiled loop, until every row has ended or the cache is full
    grow      the cache doubles: a token costs what is allocated, so no more is allocated than is needed

The host looks at the rows only where the loop stops. A row's random numbers come from its own key
(`choose.row_keys`), so a sample is the same in any batch and after a restart. Left out: refilling the slot of
a row that has ended (a batch takes as long as its longest row), and prompts longer than one prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pttrainer import sharding
from pttrainer.models import Model, Params
from pttrainer.models import cache as kv
from pttrainer.rollout.choose import choose, row_keys, uniforms
from pttrainer.rollout.protocol import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.stop import Seeker
from pttrainer.tokenizer import Tokenizer

FIRST_SLOTS = 128
STOP_CHECK_TOKENS = 16
"""How often the host looks for stop strings; the samples do not depend on it."""


class _Prompts(NamedTuple):
    """Right-padded prompts. limits_P: most new tokens of each."""

    tokens_PS: Any
    lengths_P: Any
    numbers_P: Any
    limits_P: Any


class _Rows(NamedTuple):
    """The state of all rows. step: tokens that every active row has so far; last_B: the newest of each."""

    cache: kv.KVCache
    keys_B: Array
    starts_B: Array
    limits_B: Array
    last_B: Array
    active_B: Array
    step: Array
    tokens_BT: Array
    logps_BT: Array
    lengths_B: Array
    ended_B: Array


class NativeEngine:
    """Batched sampling with `model`. `place` and `fetch` move arrays between this host and the mesh."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        place: Callable[[Any], Any] = jax.device_put,
        fetch: Callable[[Any], Any] = jax.device_get,
    ) -> None:
        self._tokenizer, self._place, self._fetch = tokenizer, place, fetch
        eos_ids = tokenizer.eos_ids
        self._weights = jax.jit(model.for_decoding)
        self._start = jax.jit(partial(_start, model, eos_ids), static_argnums=(0, 1, 2))
        self._advance = jax.jit(partial(_advance, model, eos_ids), static_argnums=0, donate_argnums=2)
        self._grow = jax.jit(_grow, static_argnums=1)

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """`samples` completions of each prompt."""
        weights = self._weights(params)
        how = replace(sampling, stop=(), max_length=0)  # what the compiled functions depend on, and no more
        slots = min(FIRST_SLOTS, sampling.max_new_tokens)
        placed = self._place(_right_padded(prompts, sampling, self._tokenizer.pad_id))
        keys = np.uint32(draw.seed), np.uint32(draw.step)
        rows, step, active = self._start(how, samples, slots, weights, placed, *keys)
        seeker = Seeker(self._tokenizer, sampling.stop, len(prompts) * samples)
        while int(active):
            if int(step) == slots:
                slots = min(2 * slots, sampling.max_new_tokens)
                rows = self._grow(rows, slots)
            until = min(slots, int(step) + STOP_CHECK_TOKENS) if sampling.stop else slots
            rows, step, active = self._advance(how, weights, rows, np.int32(until))
            if sampling.stop:
                rows, active = self._stop(seeker, rows)
        done = Completions(rows.tokens_BT, rows.logps_BT, rows.lengths_B, rows.ended_B)
        return seeker.cut(Completions(*self._fetch(done)))

    def _stop(self, seeker: Seeker, rows: _Rows) -> tuple[_Rows, int]:
        """Ends the rows that hold a stop string."""
        tokens_BT, lengths_B, active_B = self._fetch((rows.tokens_BT, rows.lengths_B, rows.active_B))
        left_B = active_B & ~seeker.look(tokens_BT, lengths_B)
        return rows._replace(active_B=self._place(left_B)), int(left_B.sum())


def _right_padded(prompts: Sequence[Prompt], sampling: Sampling, pad_id: int) -> _Prompts:
    lengths_P = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    tokens_PS = np.full((len(prompts), slots_for(int(lengths_P.max()))), pad_id, np.int32)
    for row, prompt in enumerate(prompts):
        tokens_PS[row, : len(prompt.tokens)] = prompt.tokens
    limits_P = np.minimum(sampling.max_new_tokens, sampling.max_length - lengths_P).astype(np.int32)
    return _Prompts(tokens_PS, lengths_P, np.array([prompt.number for prompt in prompts], np.uint32), limits_P)


def slots_for(tokens: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, 128, …: few enough that few shapes are compiled."""
    power = 16
    while power < tokens:
        if power * 3 // 2 >= tokens:
            return power * 3 // 2
        power *= 2
    return power


def _start(
    model: Model,
    eos_ids: tuple[int, ...],
    how: Sampling,
    samples: int,
    slots: int,
    weights: Params,
    prompts: _Prompts,
    seed: Array,
    step: Array,
) -> tuple[_Rows, Array, Array]:
    """Prefills the prompts and samples every row's first token."""
    P, S = prompts.tokens_PS.shape
    slot_S = jnp.arange(S)
    positions_PS = jnp.where(slot_S < prompts.lengths_P[:, None], slot_S, kv.EMPTY)
    prompt_cache = kv.empty(model.config, P, S, model.compute_dtype)
    hidden_PSD, prompt_cache = model.decode(weights, prompts.tokens_PS, positions_PS, prompt_cache)
    hidden_PD = jnp.take_along_axis(hidden_PSD, prompts.lengths_P[:, None, None] - 1, axis=1)[:, 0]
    per_row = partial(jnp.repeat, repeats=samples, axis=0)
    B, T = P * samples, how.max_new_tokens
    rows = _Rows(
        cache=kv.share(model.config, prompt_cache, samples, slots),
        keys_B=row_keys(seed, step, per_row(prompts.numbers_P), jnp.tile(jnp.arange(samples), P)),
        starts_B=per_row(prompts.lengths_P),
        limits_B=per_row(prompts.limits_P),
        last_B=jnp.zeros(B, jnp.int32),
        active_B=per_row(prompts.limits_P) > 0,
        step=jnp.zeros((), jnp.int32),
        tokens_BT=jnp.zeros((B, T), jnp.int32),
        logps_BT=jnp.zeros((B, T), jnp.float32),
        lengths_B=jnp.zeros(B, jnp.int32),
        ended_B=jnp.zeros(B, bool),
    )
    return _watched(_sample(model, eos_ids, how, weights, rows, per_row(hidden_PD)))


def _advance(
    model: Model, eos_ids: tuple[int, ...], how: Sampling, weights: Params, rows: _Rows, until: Array
) -> tuple[_Rows, Array, Array]:
    """Samples until `step` is `until` or no row is active."""

    def body(rows: _Rows) -> _Rows:
        positions_B = jnp.where(rows.active_B, rows.starts_B + rows.step - 1, kv.EMPTY)
        hidden_B1D, cache = model.decode(weights, rows.last_B[:, None], positions_B[:, None], rows.cache)
        return _sample(model, eos_ids, how, weights, rows._replace(cache=cache), hidden_B1D[:, 0])

    return _watched(lax.while_loop(lambda rows: (rows.step < until) & jnp.any(rows.active_B), body, rows))


def _sample(
    model: Model, eos_ids: tuple[int, ...], how: Sampling, weights: Params, rows: _Rows, hidden_BD: Array
) -> _Rows:
    """The next token of every active row, from the final hidden state of the token before."""
    logits_BV = model.capped(_logits(hidden_BD, model.head(weights)))
    if how.min_new_tokens:
        is_early = rows.step + 1 < how.min_new_tokens
        logits_BV = logits_BV.at[:, jnp.array(eos_ids)].add(jnp.where(is_early, -jnp.inf, 0.0))
    token_B, logp_B = choose(logits_BV, uniforms(rows.keys_B, rows.step), how)
    token_B = token_B.astype(jnp.int32)
    active_B = rows.active_B
    is_end_B = active_B & jnp.isin(token_B, jnp.array(eos_ids))
    at = (0, rows.step)
    return rows._replace(
        last_B=token_B,
        active_B=active_B & ~is_end_B & (rows.step + 1 < rows.limits_B),
        step=rows.step + 1,
        tokens_BT=lax.dynamic_update_slice(rows.tokens_BT, jnp.where(active_B, token_B, 0)[:, None], at),
        logps_BT=lax.dynamic_update_slice(rows.logps_BT, jnp.where(active_B, logp_B, 0.0)[:, None], at),
        lengths_B=rows.lengths_B + active_B,
        ended_B=rows.ended_B | is_end_B,
    )


def _logits(hidden_BD: Array, head_VD: Array) -> Array:
    """[B, V] float32. Written as head · hidden, which on a CPU is up to twice as fast for a few rows."""
    logits_VB = jnp.einsum("vd,bd->vb", head_VD, hidden_BD, preferred_element_type=jnp.float32)
    logits_VB = lax.optimization_barrier(logits_VB)  # type: ignore[no-untyped-call]
    return jnp.asarray(logits_VB.T)


def _watched(rows: _Rows) -> tuple[_Rows, Array, Array]:
    """With what the host needs to know, whole on every device."""
    active = jnp.sum(rows.active_B)
    return rows, sharding.constrain(rows.step, ()), sharding.constrain(active, ())


def _grow(rows: _Rows, slots: int) -> _Rows:
    return rows._replace(cache=kv.grow(rows.cache, slots))
