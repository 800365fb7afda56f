"""The critic: what is still to be earned, foretold at every token, and its own weights and optimizer.

Letters: B rows, T tokens, D model. V_t = w · hidden_t + b, float32, where hidden_t has read the tokens up to t: the
state in which the policy chooses token t + 1. hidden comes from one of two:

    head     the policy's last hidden states: w and b are all that is added, and the value loss also trains the policy's
             layers (or their adapters)
    model    a model of its own, without an output head, that reads the same tokens; where the policy is trained by
             adapters, adapters of its own on the policy's frozen weights, of which there is one copy

A critic begins with w = 0 and b = 0: it expects nothing, so first advantages are rewards and no noise. It is apart from
the policy in everything: its weights are no part of the policy's tree, its optimizer has its own rate and clips its own
gradient, freezing and averages leave it alone. Left out: a critic's adapters on other weights than the policy's, and
dropout on what they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from pttrainer.batch import Batch
from pttrainer.models import Model, Params
from pttrainer.models.parameters import value_head

HEAD = "head"
"""Where a model's own output head stands, which a critic has no use for."""
KEY = "critic"
"""Where the critic's weights stand in what an algorithm is given to read."""


class CriticState(NamedTuple):
    """What a step changes of the critic."""

    params: Params
    optimizer: Any


@dataclass(frozen=True)
class Critic:
    """width: D of the hidden states that it reads. model: its own; None: it reads the policy's."""

    width: int
    model: Model | None = None

    def abstract(self) -> Params:
        """Shapes and dtypes of its weights."""
        value = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in value_head(self.width).items()}
        return {"value": value} if self.model is None else {"value": value, **self._model(self.model.abstract())}

    def logical_axes(self) -> Params:
        """The names of each weight's axes; a value head is small, and whole on every device."""
        value = {name: one.axes for name, one in value_head(self.width).items()}
        return {"value": value} if self.model is None else {"value": value, **self._model(self.model.logical_axes())}

    def _model(self, tree: Params) -> Params:
        assert self.model is not None
        return {"model": self.model.trained(tree)}

    def values(self, params: Params, hidden_BTD: Array | None, batch: Batch, frozen: Params | None = None) -> Array:
        """V of every token [B, T], float32, 0 at padding. hidden_BTD: the policy's; what an adapter of its head adds to
        them is not read. frozen: the policy's weights that adapters are on."""
        if self.model is not None:
            rows = batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT
            hidden_BTD = self.model.forward(self.whole(params, frozen), *rows)
        assert hidden_BTD is not None
        value = params["value"]
        # A product and a sum, not a matrix product: one column would waste a whole tile, and bf16 would round w.
        hidden_BTD = hidden_BTD[..., : self.width].astype(jnp.float32)
        values_BT = jnp.sum(hidden_BTD * value["weight"], axis=-1) + value["bias"]
        return jnp.where(batch.segment_ids_BT > 0, values_BT, 0.0)

    def whole(self, params: Params, frozen: Params | None) -> Params:
        """All weights of the critic model; of the policy's frozen ones, those that it reads."""
        assert self.model is not None
        read = None if frozen is None else {name: part for name, part in frozen.items() if name != HEAD}
        return self.model.join_params(read, params["model"])


@dataclass(frozen=True)
class Learner:
    """A critic and how it learns."""

    critic: Critic
    updates: optax.GradientTransformation
    rate: optax.Schedule


def beside(params: Params, state: CriticState | None) -> Params:
    """What an algorithm is given to read: the policy's weights, and the critic's where there are any."""
    return params if state is None else {**params, KEY: state.params}


def split(params: Params) -> tuple[Params, Params]:
    """The policy's weights and the critic's, from what `beside` put together."""
    return {name: part for name, part in params.items() if name != KEY}, params[KEY]
