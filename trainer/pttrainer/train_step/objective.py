"""The interface between the compiled step and an algorithm: its loss and, optionally, a teacher and a critic."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jax import Array

from pttrainer.batch import Batch
from pttrainer.data.loss_weights import Metric
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.divergence import OfflineTeacher, Teacher
from pttrainer.models import Params
from pttrainer.runtime.reporting.step_faults import Fault
from pttrainer.train_step.critic import Critic


class Objective(Protocol):
    """The loss of an algorithm, which follows from the spec alone.

    So preflight compiles the step without data, rewards or weights.
    """

    temperature: float
    """Logits are divided by this before log-probs are taken (the sampling temperature; 1 for sft)."""
    entropy: bool
    """Compute entropies of the predictions, too."""
    level: bool
    """Pass log Σ exp and mean of the logits to the loss, too (their gradients flow only `by_token`)."""
    by_token: bool
    """The loss of a token depends on that token alone: then its slope is known while its logits are at hand."""

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return per-token loss [B, T], minimised as Σ weight · loss, and metrics. Traced: pure, no host values."""
        ...


@runtime_checkable
class HasTeacher(Protocol):
    """An algorithm with a teacher, whose predictions the step compares with the model's."""

    teacher: Teacher | OfflineTeacher
    teacher_params: Params


@runtime_checkable
class HasCritic(Protocol):
    """An objective with a critic, whose loss the step adds to its own.

    The step trains its weights too, and `next_batch` receives them (`critic.with_critic_params`).
    """

    critic: Critic
    critic_rate: float | None
    """Its peak learning rate, if the job sets one."""

    def value_loss(self, values_BT: Array, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the per-token loss of the critic's values [B, T], times its coefficient, and metrics."""
        ...


@runtime_checkable
class ChoosesByEntropy(Protocol):
    """An objective that trains on the tokens of highest entropy alone. `top_entropy_share`: of all; None: on all."""

    top_entropy_share: float | None


@runtime_checkable
class HasFault(Protocol):
    """An algorithm whose batches may lack what they are learned from, such as rewards.

    `fault`: why nothing can be learned from its last batch, or None. `missing`: how many of its samples have no reward,
    and why.
    """

    fault: Fault | None
    missing: Fault | None


@runtime_checkable
class HasImages(Protocol):
    """An algorithm whose rows may name images. `image_digests`: of their bytes, by part of the data that has any."""

    image_digests: Mapping[str, str]


@runtime_checkable
class HasCriticInit(Protocol):
    """An algorithm that initialises its critic."""

    def first_critic(self, shardings: Params) -> Params:
        """Return the critic's initial weights, with these shardings."""
        ...
