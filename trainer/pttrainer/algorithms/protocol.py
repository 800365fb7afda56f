"""The seam between the loop and an algorithm.

The loop knows weights, optimizer, checkpoints and the clock; an algorithm knows where batches come from and
what the loss of a token is. They meet in two objects:

- `Context`: what the loop offers, given once to the algorithm's `build(context)`.
- `Algorithm`: what the loop asks for, step by step:

      algorithm.restore(state)                       # only when resuming, before the first step
      for step in range(first, algorithm.total_steps):
          batch, facts = algorithm.next_batch(step, params)       # host side: data, rollout, rewards
          params, … = train_step(params, …, batch)                # traces algorithm.loss inside one jit
          at a checkpoint: algorithm.state()                      # JSON; belongs to the batches already trained

`next_batch` must depend on (seed, step, params, state) alone, so that a resumed run draws the same batches
and the same samples: N steps equal N/2, kill, N/2, bit for bit. `params` are donated to the train step: use
them inside `next_batch`, never keep them. An algorithm with several updates per rollout keeps the rest of
its rollout in `state()` and returns one part of it per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jax import Array
from jax.sharding import Mesh

from ptapi.spec import PostTrainJobSpec
from pttrainer import sharding
from pttrainer.batch import Batch
from pttrainer.critic import Critic
from pttrainer.divergence import Guide, Hearsay
from pttrainer.faults import Fault
from pttrainer.losses import TokenStats
from pttrainer.models import Model, Params
from pttrainer.reduce import Metric

if TYPE_CHECKING:
    from pttrainer.chat import Chat
    from pttrainer.rollout.transfer import Transfer
    from pttrainer.storage import Place
    from pttrainer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Context:
    """What the loop offers.

    score(params, batch, temperature): log-probs of the batch's targets at its mask, [B, T] numpy (old, reference).
    initial_params(): the weights the run started from, loaded again (a frozen reference model).
    place(tree): global host arrays onto the mesh, rows split over devices. fetch(tree): back to every host.
    save_samples(step, rows): the sample table of a step in the run directory. note(text): a line for a person.
    alive(): what is waited for has a limit of its own, so that no hang is seen.
    leader: true on the one process that writes. run: the run directory. transfer: to the devices that only sample;
    None where those that train do.
    """

    spec: PostTrainJobSpec
    model: Model
    mesh: Mesh
    tokenizer: Tokenizer
    chat: Chat
    score: Callable[[Params, Batch, float], TokenStats]
    initial_params: Callable[[], Params]
    place: Callable[[Any], Any]
    fetch: Callable[[Any], Any]
    save_samples: Callable[[int, list[dict[str, Any]]], None]
    note: Callable[[str], None]
    alive: Callable[[], None]
    leader: bool
    run: Place
    transfer: Transfer | None = None

    @property
    def deliver(self) -> Callable[[Params], Params] | None:
        """Weights to the devices that only sample, as they are wanted there."""
        return None if self.transfer is None else self.transfer.deliver

    def rows_at_once(self, rows: int) -> int:
        """Rows of an evaluation batch: no more than there are, and a multiple of the devices that share them."""
        shards = sharding.mesh_size(self.mesh, "batch")
        return math.ceil(min(self.spec.evaluation.batch_size, rows) / shards) * shards


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


class Algorithm(Objective, Protocol):
    """What the loop asks for."""

    total_steps: int
    """Optimizer steps of the whole run."""
    needs_params: bool
    """`next_batch` reads the weights, so it has to wait for the step before and cannot overlap with it."""

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """The batch of step `step` (from 0), and facts about it for the log (reward, completion length, …)."""
        ...

    def foreseen(self) -> Batch | None:
        """A batch of the shapes that the next one most likely has; None where nobody knows."""
        ...

    def evaluate(self, step: int, params: Params) -> Mapping[str, float]:
        """Metrics on held-out data, named `eval/…`; empty where there is none."""
        ...

    def state(self) -> dict[str, Any]:
        """What the next `next_batch` needs beside (seed, step, params), as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
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
