"""Batches that are sampled while others train: which weights sample which batch, and what a checkpoint keeps of it.

With a bound of s optimizer steps, the batch of step t is sampled with the weights of step max(0, t − s), always: the
samples follow from the step and never from the clock. So step t gives its weights to the batch of step t + s, and then
trains on its own, which was started s steps ago:

    trainer   | give t   train t  | give t+1   train t+1 |
    sampler   | ... t+s ......... | ... t+s+1 .......... |                        one thread, one batch after the other

With a bound of 0 nothing runs ahead: batches are sampled on demand, on the caller's thread. A checkpoint waits for the
batches in progress and keeps them, so that a run that is killed and resumed trains on the same samples. A run resumed
with a smaller bound (a fork, an edited job) drops what is now too old, counts it and samples again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from ptapi import run_directory
from pttrainer.models import Params
from pttrainer.rollout import rollout_data
from pttrainer.rollout.engine import SamplerWeights
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.runtime.reporting import spans


class _Pending(NamedTuple):
    """A batch that is, or will be, sampled with the weights after `version` optimizer steps."""

    version: int
    rollout: Future[Rollout]


class Pipeline:
    """The batches in progress, in order of their steps.

    bound: of the staleness, in optimizer steps. total: of the run's steps. is_due: True for a step with a batch of
    its own. deliver: move weights to the sampling devices; None if they are there. draw: sample a step's batch with
    weights. identify: which weights these are, for `draw`; None if it does not ask.
    """

    def __init__(
        self,
        bound: int,
        total: int,
        is_due: Callable[[int], bool],
        deliver: Callable[[Params], Params] | None,
        draw: Callable[[int, SamplerWeights], Rollout],
        identify: Callable[[Params], Any] | None = None,
    ) -> None:
        self._bound, self._total, self._is_due, self._draw = bound, total, is_due, draw
        self._deliver, self._identify = deliver, identify
        self._pending: dict[int, _Pending] = {}
        self._dropped = 0
        self._sampler = ThreadPoolExecutor(1, "sampler") if bound else None

    def next(self, step: int, params: Params) -> Rollout:
        """Return the batch of this step, and start the batch that waits for its weights."""
        began = time.monotonic()
        if step in self._pending:  # its copy of the weights makes room for the next one
            self._pending[step].rollout.result()
        waited = time.monotonic()
        self.start_batches(step, params)
        started = time.monotonic()
        version, future = self._pending.pop(step)
        rollout = future.result()
        if self._deliver is None:
            return rollout
        behind = float(step - version)
        facts = {f"{run_directory.SECONDS}wait": waited - began + time.monotonic() - started}
        if run_directory.STALENESS in rollout.facts:  # its tokens have versions of their own
            return rollout.with_facts(facts)
        facts |= {run_directory.STALENESS: behind, f"{run_directory.STALENESS}/max": behind}
        facts[f"{run_directory.STALENESS}/dropped"] = float(self._dropped)
        self._dropped = 0
        table = [{**row, "version": version} for row in rollout.table]
        return replace(rollout.with_facts(facts), table=table)

    def start_batches(self, step: int, params: Params) -> None:
        """Start every batch up to the bound that is not started yet, with the weights of this step."""
        last = max(step, min(step + self._bound, self._total - 1))
        missing = [at for at in range(step, last + 1) if at not in self._pending and self._is_due(at)]
        if not missing:
            return
        identity = None if self._identify is None else self._identify(params)
        weights = SamplerWeights(self._delivered(params), step, identity)
        for at in missing:
            self._pending[at] = _Pending(step, self._begin(at, weights))

    def when_idle(self, params: Params) -> Params:
        """Wait until nothing is sampled, and return these weights on the sampling devices: for an evaluation."""
        self.wait()
        return self._delivered(params)

    def wait(self) -> None:
        """Wait until nothing is sampled."""
        for pending in self._pending.values():
            pending.rollout.result()

    def _delivered(self, params: Params) -> Params:
        if self._deliver is None:
            return params
        with spans.span("sync"):
            return self._deliver(params)

    def state(self) -> list[dict[str, Any]]:
        """Return the batches that were sampled ahead, as JSON."""
        return [
            {**rollout_data.to_json(rollout.result()), "step": step, "version": version}
            for step, (version, rollout) in self._pending.items()
        ]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continue from what `state` returned."""
        for entry in state:
            rollout = rollout_data.from_json(entry)
            if entry["step"] - entry["version"] > self._bound:
                self._dropped += len(rollout.batch.tokens_BT)
                continue
            self._pending[entry["step"]] = _Pending(entry["version"], _finished(rollout))

    def _begin(self, step: int, weights: SamplerWeights) -> Future[Rollout]:
        if self._sampler is None:
            return _finished(self._draw(step, weights))
        return self._sampler.submit(self._draw, step, weights)


def _finished(rollout: Rollout) -> Future[Rollout]:
    future: Future[Rollout] = Future()
    future.set_result(rollout)
    return future
