"""The interface between the training loop and an algorithm.

The loop knows weights, optimizer, checkpoints and the clock; an algorithm knows where batches come from and what the
loss of a token is. The loop gives it a `rollout.context.Context` once, through the algorithm's `build(context)`, and
then calls it, step by step:

    algorithm.restore(state)                       # only when resuming, before the first step
    for step in range(first, algorithm.total_steps):
        batch, facts = algorithm.next_batch(step, params)       # host side: data, rollout, rewards
        params, … = train_step(params, …, batch)                # traces algorithm.loss inside one jit
        at a checkpoint: algorithm.state()                      # JSON; belongs to the batches already trained

`next_batch` must depend on (seed, step, params, state) alone, so that a resumed run draws the same batches and the same
samples: N steps equal N/2, kill, N/2, bit for bit. `params` are donated to the train step: use them inside
`next_batch`, never keep them. An algorithm with several updates per rollout keeps the rest of its rollout in `state()`
and returns one part of it per call.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pttrainer.batch import Batch
from pttrainer.models import Params
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.runtime.background_compile import EarlyFunction
from pttrainer.train_step.objective import Objective


class Algorithm(Objective, Protocol):
    """The interface that the loop uses."""

    total_steps: int
    """Optimizer steps of the whole run."""
    needs_params: bool
    """`next_batch` reads the weights, so it has to wait for the step before and cannot overlap with it."""

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return the batch of step `step` (from 0), and facts for the log (reward, completion length, …)."""
        ...

    def expected_batch(self) -> Batch | None:
        """Return a batch of the shapes that the next one most likely has; None if they are unknown."""
        ...

    def evaluate(self, params: Params) -> Mapping[str, float]:
        """Return metrics on held-out data, named `eval/…`; empty without such data."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what the next `next_batch` needs besides (seed, step, params), as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...


@runtime_checkable
class HasAnswers(Protocol):
    """An algorithm whose `evaluate` may sample answers."""

    evaluation: Evaluation | None


@runtime_checkable
class HasScores(Protocol):
    """An algorithm that asks for log-probs of batches besides those of the train step."""

    def expected_scores(self, *, held_out: bool) -> Iterable[Batch]:
        """Return batches of the shapes that it most likely asks for, in that order; none where they are unknown.

        held_out: by `evaluate`, else by `next_batch`, or whichever is called first.
        """
        ...


class Call(NamedTuple):
    """A call of a jitted function. arguments: as shapes with shardings, or arrays."""

    function: EarlyFunction
    arguments: tuple[Any, ...]


@runtime_checkable
class HasCalls(Protocol):
    """An algorithm that calls jitted functions of its own besides the train step and the scoring pass."""

    def expected_calls(self, params: Params, *, held_out: bool) -> Iterable[Call]:
        """Return the calls that it most likely makes, in that order; none where their shapes are unknown.

        params: all weights, as `evaluate` and `next_batch` get them. held_out: as in `HasScores`.
        """
        ...
