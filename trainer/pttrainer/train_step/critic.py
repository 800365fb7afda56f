"""The critic: the remaining reward predicted at every token, with its own weights and optimizer.

Letters: B rows, T tokens, D model. V_t = w · hidden_t + b, float32, where hidden_t has read the tokens up to t: the
state in which the policy chooses token t + 1. hidden comes from one of two:

    head     the policy's last hidden states: only w and b are added, and the value loss also trains the policy's
             layers (or their adapters)
    model    a separate model without an output head that reads the same tokens; if the policy is trained with
             adapters, adapters of its own on the policy's frozen weights, of which there is one copy

A reward model (`algorithms.reward`) is such a head on its own last hidden states, without b.

A critic begins with w = 0 and b = 0: it expects nothing, so first advantages are rewards without noise. It is separate
from the policy in everything: its weights are not in the policy's tree, its optimizer has its own rate and clips its
own gradient, freezing and averages leave it alone. Left out: a critic's adapters on other weights than the policy's,
and dropout on their inputs.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from pttrainer.batch import Batch
from pttrainer.models import Model, Params
from pttrainer.models.shapes.parameters import ParamSpec, value_head
from pttrainer.models.shapes.structure import split_part, with_part

HEAD = "head"
"""Key of a model's own output head, which a critic does not use."""
KEY = "critic"
"""Key of the critic's weights among those that an algorithm reads."""


class CriticState(NamedTuple):
    """The parts of the critic that a step changes."""

    params: Params
    optimizer: Any


@dataclass(frozen=True)
class Critic:
    """A critic. width: D of the hidden states that it reads; model: its own, or None to read the policy's."""

    width: int
    model: Model | None = None
    has_bias: bool = True

    def abstract(self) -> Params:
        """Return shapes and dtypes of its weights."""
        value = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in self._head.items()}
        return {"value": value} if self.model is None else {"value": value, **self._model(self.model.abstract())}

    def logical_axes(self) -> Params:
        """Return the names of each weight's axes; a value head is small, and replicated."""
        value = {name: one.axes for name, one in self._head.items()}
        return {"value": value} if self.model is None else {"value": value, **self._model(self.model.logical_axes())}

    @property
    def _head(self) -> dict[str, ParamSpec]:
        return value_head(self.width, has_bias=self.has_bias)

    def _model(self, tree: Params) -> Params:
        assert self.model is not None
        return {"model": self.model.trained(tree)}

    def values(self, params: Params, hidden_BTD: Array | None, batch: Batch, frozen: Params | None = None) -> Array:
        """Return V of every token [B, T], float32, 0 at padding.

        hidden_BTD: the policy's; what an adapter of its head adds is not read. frozen: the policy's weights
        under adapters.
        """
        if self.model is not None:
            rows = batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT
            hidden_BTD = self.model.forward(self.whole(params, frozen), *rows)
        assert hidden_BTD is not None
        value = params["value"]
        # A product and a sum, not a matrix product: one column would waste a whole tile, and bf16 would round w.
        hidden_BTD = hidden_BTD[..., : self.width].astype(jnp.float32)
        values_BT = jnp.sum(hidden_BTD * value["weight"], axis=-1)
        if self.has_bias:
            values_BT += value["bias"]
        return jnp.where(batch.segment_ids_BT > 0, values_BT, 0.0)

    def whole(self, params: Params, frozen: Params | None) -> Params:
        """Return all weights of the critic model, with those of the policy's frozen ones that it reads."""
        assert self.model is not None
        read = None if frozen is None else {name: part for name, part in frozen.items() if name != HEAD}
        return self.model.join_params(read, params["model"])


@dataclass(frozen=True)
class CriticLearner:
    """A critic with its update rule and learning rate."""

    critic: Critic
    updates: optax.GradientTransformationExtraArgs
    rate: optax.Schedule


def with_critic_params(params: Params, state: CriticState | None) -> Params:
    """Return the weights that an algorithm reads: the policy's, and the critic's if there is one."""
    return with_part(params, KEY, None if state is None else state.params)


def split_critic_params(params: Params) -> tuple[Params, Params]:
    """Split what `with_critic_params` returned into the policy's weights and the critic's."""
    policy, critic = split_part(params, KEY)
    assert critic is not None
    return policy, critic
