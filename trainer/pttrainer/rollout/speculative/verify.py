"""Several tokens in one pass of the model: a proposer guesses a row's next tokens, the model verifies them.

Letters: B rows, K proposals, T = K + 1 tokens of a pass, D model, V vocabulary.

The model's own token at a position is `choose(logits, number)`, and the number follows from (seed, step, prompt,
sample, position) alone. So nothing is left to chance: a proposal is accepted if it is the very token that the model
draws there. The first that is not ends the pass, and the model draws its own in the next. Hence a sample is the one
that is sampled without proposals (up to the rounding of a pass over several tokens), whatever is proposed; the
distribution is exact. Rejection sampling (arXiv 2211.17192, 2302.01318) accepts as many n-grams and more of a draft's
proposals, but its samples differ: docs/decisions/0008.

A pass writes all its tokens into the cache; setting a row's clock back to the accepted ones makes the next pass
overwrite the others before it reads (`models.attention.kv_cache`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from pttrainer.models import Model, Params
from pttrainer.rollout.native.prefill import PaddedPrompts

DrawToken = Callable[[Model, Params, Array, Array, Array], tuple[Array, Array]]
"""(model, its weights, hidden_BD, keys_B, counts_B) -> the completion's next token, and its log-prob."""


class ProposalRequest(NamedTuple):
    """The rows that need proposals.

    For each row: its last token, where its completion starts, its length (that token included), its random key,
    whether it is active, and the model's state that its last token was drawn from. policy: the model's weights.
    """

    token_B: Array
    starts_B: Array
    counts_B: Array
    keys_B: Array
    active_B: Array
    hidden_BD: Array
    policy: Params


class Proposer(Protocol):
    """A proposer of tokens. Its state of prompts and rows is a pytree; weights: a draft model's or head's, if any."""

    @property
    def tokens(self) -> int:
        """Return K."""
        ...

    def __hash__(self) -> int:
        """Return a hash: equal proposers share their programs."""
        ...

    def init_prompts(self, weights: Params | None, padded: PaddedPrompts) -> Any:
        """Return the state of prompts."""
        ...

    def init_rows(self, prompts: Any, samples: int, slots: int) -> Any:
        """Return the state of `samples` rows for each prompt, with `slots` slots of their own."""
        ...

    def idle(self, prompts: Any, rows: int, slots: int) -> Any:
        """Return the state of rows that wait for prompts like these."""
        ...

    def take_over(self, state: Any, row: Array, prompts: Any, which: Array) -> Any:
        """Start a row with one of the prompts."""
        ...

    def select_rows(self, state: Any, rows: Array) -> Any:
        """Return the state of these rows alone."""
        ...

    def grow(self, state: Any, more: int) -> Any:
        """Add `more` slots."""
        ...

    def propose(
        self, draw: DrawToken, weights: Params | None, state: Any, request: ProposalRequest
    ) -> tuple[Array, Any]:
        """Return proposals_BK, undefined for inactive rows, and the new state."""
        ...

    def keep(self, state: Any, taken_B: Array) -> Any:
        """Keep the accepted tokens of every row's pass."""
        ...


class Verified(NamedTuple):
    """The result of verification. is_accepted_BK: a prefix of the proposals; is_ended_B: the last one ends its row."""

    is_accepted_BK: Array
    is_ended_B: Array

    @property
    def counts_B(self) -> Array:
        """Return the number of accepted proposals."""
        return jnp.sum(self.is_accepted_BK, axis=1)


def verify(proposals_BK: Array, choices_BK: Array, is_last_BK: Array, active_B: Array) -> Verified:
    """Accept proposals that equal the model's own tokens, up to the first that differs or ends the row."""
    is_same_BK = (proposals_BK == choices_BK) & active_B[:, None]
    goes_on_BK = is_same_BK & ~is_last_BK
    before_BK = jnp.cumprod(goes_on_BK, axis=1, dtype=jnp.int32).astype(bool)
    is_reached_BK = jnp.concatenate([jnp.ones_like(before_BK[:, :1]), before_BK[:, :-1]], axis=1)
    is_accepted_BK = is_same_BK & is_reached_BK
    return Verified(is_accepted_BK, jnp.any(is_accepted_BK & is_last_BK, axis=1))


@dataclass(frozen=True)
class Speculation:
    """The native engine's proposer, and its draft's weights as `Model.for_decoding` makes them.

    The weights of a head come with the model's (`models.decoding.block_head.with_block`).
    """

    proposer: Proposer
    weights: Params | None = None
    draft: Model | None = None


PASSES, PROPOSED, ACCEPTED = "speculation/passes", "speculation/proposed", "speculation/accepted"
"""Counts for the log: passes of rows through the model, proposed tokens, accepted tokens."""


def count_proposals(is_sampled_TB: np.ndarray, tokens: int) -> dict[str, float]:
    """Return the counts of a dispatch: each pass has a line for the row's own token and one per proposal."""
    passes = is_sampled_TB.reshape(-1, tokens + 1, is_sampled_TB.shape[1])
    own = int(passes[:, 0].sum())
    return {PASSES: own, PROPOSED: own * tokens, ACCEPTED: int(passes[:, 1:].sum())}


def add_counts(counts: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Return the sums of both."""
    return {name: counts.get(name, 0.0) + more.get(name, 0.0) for name in {*counts, *more}}


def with_rates(counts: Mapping[str, float]) -> dict[str, float]:
    """Add the rates that follow from the counts; none without proposals."""
    if not counts.get(PASSES):
        return dict(counts)
    accepted = counts[ACCEPTED]
    return {
        **counts,
        "speculation/accepted_share": accepted / counts[PROPOSED],
        "speculation/tokens_per_pass": 1.0 + accepted / counts[PASSES],
    }
