"""Several tokens for one pass of the model: a proposer guesses what a row says next, the model checks the guesses.

Letters: B rows, K proposals, T = K + 1 tokens of a pass, D model, V vocabulary.

The model's own token at a position is `choose(logits, number)`, and the number follows from (seed, step, prompt,
sample, position) alone. So nothing is left to chance: a proposal is taken if it is the very token that the model draws
there. The first that is not ends the run, and the model draws its own in the next pass. Hence a sample is the one that
is sampled without proposals (up to the rounding of a pass over several tokens), whatever is proposed; exact in
distribution follows. Rejection sampling (arXiv 2211.17192, 2302.01318) takes as many n-grams and more of a draft's
proposals, but its samples are others: docs/decisions/0008.

A pass writes all its tokens into the cache; setting a row's clock back to what was taken makes the next pass write over
the others before it reads (`models.cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from pttrainer.models import Model, Params
from pttrainer.rollout.native.prefill import Padded

Draw = Callable[[Model, Params, Array, Array, Array], tuple[Array, Array]]
"""(model, its weights, hidden_BD, keys_B, counts_B) -> the token after so many of the completion, and its log-prob."""


class Asked(NamedTuple):
    """Rows that want proposals: what each said last, where its completion starts, how much it has said (that token
    included), its random key, and whether it goes on at all."""

    token_B: Array
    starts_B: Array
    counts_B: Array
    keys_B: Array
    active_B: Array


class Proposer(Protocol):
    """Guesses. What it remembers of prompts and of rows is a pytree of its own; weights: of a draft model, if it has
    one."""

    @property
    def tokens(self) -> int:
        """K."""
        ...

    def __hash__(self) -> int:
        """Equal ones share their programs."""
        ...

    def of_prompts(self, weights: Params | None, padded: Padded) -> Any:
        """What it remembers of prompts."""
        ...

    def of_rows(self, prompts: Any, samples: int, slots: int) -> Any:
        """Of `samples` rows for each prompt, with room for so many tokens of their own."""
        ...

    def idle(self, prompts: Any, rows: int, slots: int) -> Any:
        """Of rows that wait for prompts like these."""
        ...

    def take_over(self, state: Any, row: Array, prompts: Any, which: Array) -> Any:
        """A row begins with one of the prompts."""
        ...

    def only(self, state: Any, rows: Array) -> Any:
        """Of these rows alone."""
        ...

    def room(self, state: Any, more: int) -> Any:
        """Room for so many tokens more."""
        ...

    def propose(self, draw: Draw, weights: Params | None, state: Any, asked: Asked) -> tuple[Array, Any]:
        """proposals_BK; of rows that are not active they mean nothing."""
        ...

    def keep(self, state: Any, taken_B: Array) -> Any:
        """Of every row's pass so many tokens stay."""
        ...


class Checked(NamedTuple):
    """is_said_BK: the proposals that are said; they come first. is_ended_B: the last of them ends its row."""

    is_said_BK: Array
    is_ended_B: Array

    @property
    def counts_B(self) -> Array:
        """How many are said."""
        return jnp.sum(self.is_said_BK, axis=1)


def check(proposals_BK: Array, choices_BK: Array, is_last_BK: Array, active_B: Array) -> Checked:
    """What is said of the proposals, given the model's own tokens there and whether they would be the last."""
    is_same_BK = (proposals_BK == choices_BK) & active_B[:, None]
    goes_on_BK = is_same_BK & ~is_last_BK
    before_BK = jnp.cumprod(goes_on_BK, axis=1, dtype=jnp.int32).astype(bool)
    is_reached_BK = jnp.concatenate([jnp.ones_like(before_BK[:, :1]), before_BK[:, :-1]], axis=1)
    is_said_BK = is_same_BK & is_reached_BK
    return Checked(is_said_BK, jnp.any(is_said_BK & is_last_BK, axis=1))


@dataclass(frozen=True)
class Speculation:
    """How the native engine guesses: the proposer, and its draft's weights as `Model.for_decoding` makes them."""

    proposer: Proposer
    weights: Params | None = None
    draft: Model | None = None


PASSES, PROPOSED, ACCEPTED = "speculation/passes", "speculation/proposed", "speculation/accepted"
"""Counts for the log: passes of rows through the model, what was proposed in them, what was said of it."""


def tally(is_said_TB: np.ndarray, tokens: int) -> dict[str, float]:
    """The counts of a dispatch: each pass has a line for the row's own token and one for each of `tokens` proposals."""
    passes = is_said_TB.reshape(-1, tokens + 1, is_said_TB.shape[1])
    own = int(passes[:, 0].sum())
    return {PASSES: own, PROPOSED: own * tokens, ACCEPTED: int(passes[:, 1:].sum())}


def added(counts: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Both together."""
    return {name: counts.get(name, 0.0) + more.get(name, 0.0) for name in {*counts, *more}}


def with_rates(counts: Mapping[str, float]) -> dict[str, float]:
    """The counts, and what follows from them; no more where nobody guessed."""
    if not counts.get(PASSES):
        return dict(counts)
    accepted = counts[ACCEPTED]
    return {
        **counts,
        "speculation/accepted_share": accepted / counts[PROPOSED],
        "speculation/tokens_per_pass": 1.0 + accepted / counts[PASSES],
    }
