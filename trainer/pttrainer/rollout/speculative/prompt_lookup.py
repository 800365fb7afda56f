"""Propose tokens from the row's own text: what followed the previous match of its newest tokens (prompt lookup).

Letters: B rows, P prompts, S slots of prompts, L tokens of a row with its prompt, K proposals, N longest match.

Among all earlier places, the match is the one whose tokens agree with the row's newest ones over the longest stretch,
up to N; of several the latest. If fewer than K tokens follow it, they are repeated: a row that repeats itself tends to
go on. If nothing agrees, the newest token is proposed again: a pass costs the same with any proposals.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models import Params
from pttrainer.rollout.native.prefill import PaddedPrompts
from pttrainer.rollout.speculative.verify import DrawToken, ProposalRequest


@dataclass(frozen=True)
class Ngram:
    """Prompt lookup as proposer. tokens: proposals of a pass; longest: most tokens that are compared.

    Its state is tokens_BL: all tokens of the rows, prompts first. Entries after a row's end are undefined.
    """

    tokens: int
    longest: int

    def init_prompts(self, weights: Params | None, padded: PaddedPrompts) -> Array:
        """Return the prompts."""
        del weights
        return jnp.asarray(padded.tokens_PS)

    def init_rows(self, prompts: Array, samples: int, slots: int) -> Array:
        """Return each prompt once for each of its samples."""
        return self.grow(jnp.repeat(prompts, samples, axis=0), slots)

    def idle(self, prompts: Array, rows: int, slots: int) -> Array:
        """Return rows without text."""
        return jnp.zeros((rows, prompts.shape[1] + slots), prompts.dtype)

    def take_over(self, state: Array, row: Array, prompts: Array, which: Array) -> Array:
        """Start the row's text with the prompt."""
        one = lax.dynamic_slice_in_dim(prompts, which, 1, axis=0)
        return lax.dynamic_update_slice(state, one, (row, 0))

    def select_rows(self, state: Array, rows: Array) -> Array:
        """Return the state of these rows alone."""
        return state[rows]

    def grow(self, state: Array, more: int) -> Array:
        """Make rows longer."""
        return jnp.pad(state, ((0, 0), (0, more)))

    def propose(
        self, draw: DrawToken, weights: Params | None, state: Array, request: ProposalRequest
    ) -> tuple[Array, Array]:
        """Return proposals_BK, and write them to the state: the next pass overwrites those not accepted."""
        del draw, weights
        ends_B = request.starts_B + request.counts_B - 1  # where the newest token stands
        tokens_BL = _written(state, request.token_B[:, None], ends_B)
        proposals_BK = jax.vmap(self._of_row)(tokens_BL, ends_B)
        return proposals_BK, _written(tokens_BL, proposals_BK, ends_B + 1)

    def keep(self, state: Array, taken_B: Array) -> Array:
        """Return the state as it is: the rows' counts say where the text ends."""
        del taken_B
        return state

    def _of_row(self, tokens_L: Array, end: Array) -> Array:
        place_L = jnp.arange(tokens_L.shape[0])
        agrees_L, length_L = place_L < end, jnp.zeros_like(place_L)
        for back in range(self.longest):
            is_alike_L = jnp.roll(tokens_L, back) == tokens_L[jnp.maximum(end - back, 0)]
            agrees_L = agrees_L & (place_L >= back) & is_alike_L
            length_L = length_L + agrees_L
        length_L = jnp.where(place_L < end, length_L, -1)
        last = tokens_L.shape[0] - 1 - jnp.argmax(length_L[::-1])
        follow = jnp.maximum(end - last, 1)
        return tokens_L[jnp.minimum(last, end) + 1 + jnp.arange(self.tokens) % follow]


def _written(tokens_BL: Array, new_BX: Array, at_B: Array) -> Array:
    return jax.vmap(partial(lax.dynamic_update_slice_in_dim, axis=0))(tokens_BL, new_BX, at_B)
