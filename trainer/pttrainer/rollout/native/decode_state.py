"""The rows in progress, the prompts that they begin with, and their tokens: arrays on the devices.

Letters: B rows, P prompts, G samples per prompt, N = P·G, T lines of a dispatch, L more of them, D model.
"""

from typing import Any, NamedTuple

from jax import Array, lax

from pttrainer.models.attention import kv_cache as kv
from pttrainer.rollout.native import cache_layout

NO_OWNER = -1


class Pool(NamedTuple):
    """Computed prompts, as samples first, …, end - 1 of the rollout (G for each prompt).

    hidden_PD: the state from which the first token is sampled. proposer_state: the proposer's state of the prompts.
    routes_PSLk: the experts of the prompts' tokens, if they are recorded. counts_P: where samples go on, how many of
    the prompt's tokens are theirs.
    """

    cache: kv.KVCache
    hidden_PD: Array
    lengths_P: Array
    limits_P: Array
    keys_N: Array
    first: Any
    end: Any
    proposer_state: Any = None
    routes_PSLk: Any = None
    counts_P: Any = None


class Rows(NamedTuple):
    """The state of every row for its next token.

    owners_B: the sample in a row; counts_B: its tokens so far; births_B: the time of the first of them; drawn: the
    next sample to take over; proposer_state: the proposer's state of the rows.
    """

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
    proposer_state: Any = None


class SampledTokens(NamedTuple):
    """The tokens of a dispatch, for the host: the first `count` lines. owners_TB: their samples, or NO_OWNER.

    routes_TBLk: their experts, if they are recorded; of a row's last token they mean nothing.
    """

    tokens_TB: Array
    logps_TB: Array
    owners_TB: Array
    count: Array  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    routes_TBLk: Array | None = None


class DecodeProgress(NamedTuple):
    """What the host decides on, replicated on every device. age: slots that the oldest active row needs."""

    active_B: Any
    owners_B: Any
    drawn: Any
    age: Any


def append_tokens(
    sampled: SampledTokens, tokens: Array, logps: Array, owners: Array, routes: Array | None = None
) -> SampledTokens:
    """Append one line ([B]), or several ([L, B]). routes: the experts of these tokens, with two axes more."""

    def put(of: Array, lines: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(of, lines.reshape(-1, *of.shape[1:]), sampled.count, axis=0)

    return SampledTokens(
        tokens_TB=put(sampled.tokens_TB, tokens),
        logps_TB=put(sampled.logps_TB, logps),
        owners_TB=put(sampled.owners_TB, owners),
        count=sampled.count + (1 if tokens.ndim == 1 else tokens.shape[0]),
        routes_TBLk=None if sampled.routes_TBLk is None or routes is None else put(sampled.routes_TBLk, routes),
    )
