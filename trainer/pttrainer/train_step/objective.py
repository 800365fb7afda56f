"""What the compiled step needs of an algorithm: its loss, and, where it has them, a teacher and a critic."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jax import Array

from pttrainer.batch import Batch
from pttrainer.data.loss_weights import Metric
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.distillation import Guide, Hearsay
from pttrainer.models import Params
from pttrainer.runtime.reporting.step_faults import Fault
from pttrainer.train_step.critic import Critic


class Objective(Protocol):
    """What the compiled step needs of an algorithm: its loss, which follows from the spec alone. So preflight compiles
    the step without data, rewards or weights."""

    temperature: float
    """Logits are divided by this before log-probs are taken (the sampling temperature; 1 for sft)."""
    entropy: bool
    """Compute entropies of the predictions, too."""
    level: bool
    """Give the loss log Σ exp and mean of the logits, too (their gradients flow only `by_token`)."""
    by_token: bool
    """The loss of a token depends on that token alone: then its slope is known while its logits are at hand."""

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Per-token loss [B, T], minimised as Σ weight · loss, and metrics. Traced: pure, no host values."""
        ...


@runtime_checkable
class Guided(Protocol):
    """An algorithm with a teacher, whose predictions the step compares with the model's. `teacher`: its weights."""

    guide: Guide | Hearsay
    teacher: Params


@runtime_checkable
class Criticised(Protocol):
    """An objective with a critic, whose loss the step adds to its own and whose weights it trains beside the policy's.
    `next_batch` is given them too (`critic.beside`)."""

    critic: Critic
    critic_rate: float | None
    """Its peak learning rate, where the job names one."""

    def value_loss(self, values_BT: Array, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Per-token loss of the critic's values [B, T], in the share that the policy's loss leaves it, and metrics."""
        ...


@runtime_checkable
class Fallible(Protocol):
    """An algorithm whose batches may lack what they are learned from, such as rewards. `fault`: why nothing can be
    learned from the batch that it gave last; None where something can."""

    fault: Fault | None


@runtime_checkable
class Beginning(Protocol):
    """An algorithm that knows how its critic begins."""

    def first_critic(self, shardings: Params) -> Params:
        """Its weights before the first step, on their shardings."""
        ...
