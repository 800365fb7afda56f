"""The state that a step changes, and where it lies on the mesh."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.sharding import Mesh, NamedSharding

from pttrainer.models import Model, Params
from pttrainer.models.decoding import block_head
from pttrainer.models.decoding.block_head import with_block
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import critic
from pttrainer.train_step.block_learner import BlockState
from pttrainer.train_step.critic import CriticState, with_critic_params
from pttrainer.train_step.entropy import EntropyState
from pttrainer.train_step.optimizer import moving_reference
from pttrainer.train_step.optimizer.moving_reference import with_reference


class TrainState(NamedTuple):
    """Everything that a step changes.

    params: the trained weights (adapters alone, if there are any); step: optimizer steps done, int32; skipped: how many
    of them were skipped, and how many in a row, int32; critic: its weights and optimizer, if the algorithm has one;
    block: those of the head that proposes tokens, if there is one; entropy: the adaptive coefficient of a bonus on it;
    reference: the weights of a reference that follows the policy.
    """

    params: Params
    optimizer: Any
    step: Any
    skipped: Any
    critic: CriticState | None = None
    block: BlockState | None = None
    entropy: EntropyState | None = None
    reference: Params | None = None


@dataclass(frozen=True)
class Layout:
    """The mesh, and the shardings of the state on it."""

    mesh: Mesh
    state: TrainState
    frozen: Params | None
    """Shardings of the weights that no step changes; None without any."""

    @property
    def whole(self) -> NamedSharding:
        """Return the sharding with a copy on every device."""
        return sharding.replicated(self.mesh)


def all_params(model: Model, frozen: Params | None, state: TrainState) -> Params:
    """Return all weights that an algorithm reads: the model's, a critic's, a reference's, a head's."""
    whole = with_critic_params(model.join_params(frozen, state.params), state.critic)
    whole = with_reference(whole, state.reference)
    return with_block(whole, None if state.block is None else state.block.params)


def model_params(params: Params) -> Params:
    """Return the model's own weights out of all that an algorithm reads."""
    others = critic.KEY, moving_reference.KEY, block_head.KEY
    return {name: part for name, part in params.items() if name not in others}
