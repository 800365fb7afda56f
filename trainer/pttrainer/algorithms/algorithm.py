"""What the loop asks of an algorithm.

The loop knows weights, optimizer, checkpoints and the clock; an algorithm knows where batches come from and what the
loss of a token is. The loop gives it a `rollout.context.Context` once, through the algorithm's `build(context)`, and
then asks, step by step:

    algorithm.restore(state)                       # only when resuming, before the first step
    for step in range(first, algorithm.total_steps):
        batch, facts = algorithm.next_batch(step, params)       # host side: data, rollout, rewards
        params, … = train_step(params, …, batch)                # traces algorithm.loss inside one jit
        at a checkpoint: algorithm.state()                      # JSON; belongs to the batches already trained

`next_batch` must depend on (seed, step, params, state) alone, so that a resumed run draws the same batches and the
same samples: N steps equal N/2, kill, N/2, bit for bit. `params` are donated to the train step: use them inside
`next_batch`, never keep them. An algorithm with several updates per rollout keeps the rest of its rollout in `state()`
and returns one part of it per call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pttrainer.batch import Batch
from pttrainer.models import Params
from pttrainer.train_step.objective import Objective


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
