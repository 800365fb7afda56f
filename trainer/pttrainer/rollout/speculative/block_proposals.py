"""Proposals of a small head on the model itself, all of a pass at once (`models.decoding.block_head`).

Letters: B rows, K proposals, D model, R rank of an adapter of the output head.

The head reads the state that the row's newest token was drawn from, and that token; nothing else is kept of a row. Each
proposal is drawn as the model would draw it: same random number for the same position of the same sample. Its weights
come with the model's, at every call, because they are trained beside them.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from pttrainer.models import Model, Params
from pttrainer.models.decoding.block_head import BlockHead
from pttrainer.rollout.native.prefill import PaddedPrompts
from pttrainer.rollout.speculative.verify import DrawToken, ProposalRequest
from pttrainer.runtime.distributed import sharding


@dataclass(frozen=True)
class Block:
    """A head on `model` as proposer. tokens: proposals of a pass. Its state is nothing."""

    tokens: int
    model: Model

    @property
    def head(self) -> BlockHead:
        """Return the head."""
        return BlockHead(self.tokens, self.model.config.d_model)

    def init_prompts(self, weights: Params | None, padded: PaddedPrompts) -> None:
        """Keep nothing of the prompts."""

    def init_rows(self, prompts: None, samples: int, slots: int) -> None:
        """Keep nothing of the rows."""

    def idle(self, prompts: None, rows: int, slots: int) -> None:
        """Keep nothing of the rows."""

    def take_over(self, state: None, row: Array, prompts: None, which: Array) -> None:
        """Keep nothing of the prompt."""

    def select_rows(self, state: None, rows: Array) -> None:
        """Keep nothing of the rows."""

    def grow(self, state: None, more: int) -> None:
        """Keep nothing of the rows."""

    def propose(
        self, draw: DrawToken, weights: Params | None, state: None, request: ProposalRequest
    ) -> tuple[Array, None]:
        """Return proposals_BK, all from one pass of the head."""
        assert weights is not None
        B, width = request.hidden_BD.shape
        head_VD = self.model.head(request.policy)
        states_BKD = self.head.states(weights, request.hidden_BD, head_VD, request.token_B)
        states_BKD = jnp.pad(states_BKD, ((0, 0), (0, 0), (0, width - states_BKD.shape[-1])))  # D + R wide
        counts_BK = request.counts_B[:, None] + jnp.arange(self.tokens)
        keys_Q = jnp.repeat(request.keys_B, self.tokens)
        tokens_Q, _ = draw(self.model, request.policy, states_BKD.reshape(-1, width), keys_Q, counts_BK.reshape(-1))
        return tokens_Q.reshape(B, self.tokens), None

    def keep(self, state: None, taken_B: Array) -> None:
        """Keep nothing of the rows."""


def for_sampling(block: Params, dtype: str, mesh: Mesh | None) -> Params:
    """Return the head's weights in the compute format, a copy on every sampling device: it is small."""
    made: Params = _placing(dtype, mesh)(block)
    return made


@lru_cache(maxsize=16)
def _placing(dtype: str, mesh: Mesh | None) -> Any:
    where = None if mesh is None else sharding.replicated(mesh)
    return jax.jit(lambda block: jax.tree.map(lambda x: x.astype(dtype), block), out_shardings=where)
