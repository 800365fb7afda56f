"""The rows that are being sampled, the prompts that they begin with, and what they said: arrays on the devices.

Letters: B rows, P prompts, G samples per prompt, N = P·G, T lines of a dispatch, L more of them, D model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array, lax

from pttrainer.models.attention import kv_cache as kv
from pttrainer.rollout.native import cache_layout

NOBODY = -1


class Pool(NamedTuple):
    """Prompts that were computed, as samples first, …, end - 1 of the rollout (G for each prompt).

    hidden_PD: the state from which the first token is sampled. guesses: what a proposer remembers of the prompts.
    """

    cache: kv.KVCache
    hidden_PD: Array
    lengths_P: Array
    limits_P: Array
    keys_N: Array
    first: Any
    end: Any
    guesses: Any = None


class Rows(NamedTuple):
    """What every row needs for its next token. owners_B: the sample that a row says; counts_B: its tokens so far;
    births_B: the time of the first of them; drawn: the sample that is taken over next; guesses: a proposer's."""

    cache: cache_layout.Cache
    hidden_BD: Array
    keys_B: Array
    owners_B: Array
    starts_B: Array
    limits_B: Array
    counts_B: Array
    births_B: Array
    active_B: Array
    drawn: Array
    guesses: Any = None


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


def with_lines(said: Said, tokens: Array, logps: Array, owners: Array) -> Said:
    """One line more ([B]), or several ([L, B])."""

    def put(of: Array, lines: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(of, lines[None] if lines.ndim == 1 else lines, said.count, axis=0)

    tokens_TB, logps_TB, owners_TB = (
        put(said.tokens_TB, tokens),
        put(said.logps_TB, logps),
        put(said.owners_TB, owners),
    )
    return Said(tokens_TB, logps_TB, owners_TB, said.count + (1 if tokens.ndim == 1 else tokens.shape[0]))
