"""Steps that could not learn: counted by reason, and the end of a run that does not learn.

A step is one of four:

    level     its rewards are there, and equal: nothing to learn from them, and nobody's fault
    learned   its gradient is finite and not 0
    still     its gradient is 0 for another reason, as of pairs that are mastered
    failed    something that it needed is missing or broken (`faults`): it could not learn

A run fails when too many of its steps failed, when none learned and none was level, or when all of them together
changed no weight. Only failed steps count against the share: a model that solves every prompt, or none, is no fault.

The record is in every checkpoint, so a run that was stopped goes on counting. All of this is pure. Every process counts
alike, but the words of a reward that failed are the leader's alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ptapi import run_directory
from pttrainer.batch import Batch
from pttrainer.errors import TrainerError
from pttrainer.runtime.reporting import step_faults
from pttrainer.runtime.reporting.step_faults import Fault, Kind
from pttrainer.train_step import nonfinite

Tally = dict[tuple[Kind, str], tuple[int, Fault]]
"""By kind and part of the job: how many steps failed, and the last fault with the samples of all of them."""


@dataclass
class Record:
    """Of a run's steps so far. first: digests of the weights that it began with; good: the last step that did not fail;
    faults: of the run; row: of the failed steps since the last good one."""

    first: list[int] = field(default_factory=list)
    steps: int = 0
    learned: int = 0
    level: int = 0
    good: int = 0
    faults: Tally = field(default_factory=dict)
    row: Tally = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Failed steps of the run."""
        return _steps(self.faults)

    @property
    def in_a_row(self) -> int:
        """Failed steps since the last good one."""
        return _steps(self.row)

    def count(self, step: int, values: Mapping[str, float], batch: Batch, given: Fault | None) -> Fault | None:
        """Adds a step; why it could not learn, where it could not. given: what the algorithm says of its batch."""
        self.steps += 1
        fault = _fault(values, batch, given)
        if fault is not None:
            _add(self.faults, fault)
            _add(self.row, fault)
            return fault
        self.good, self.row = step, {}
        if batch.advantages_BT is not None and not np.any(batch.advantages_BT):
            self.level += 1  # whatever else has a gradient, such as the pull towards a reference
        elif values[run_directory.GRAD_NORM]:
            self.learned += 1
        return None

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        tallies = {name: _to_json(tally) for name, tally in (("faults", self.faults), ("row", self.row))}
        return {**vars(self), **tallies}


def from_json(document: Mapping[str, Any]) -> Record:
    """What `Record.to_json` made; a new one where the checkpoint is of before there were any."""
    tallies = {name: _tally(document[name]) for name in ("faults", "row") if document}
    return Record(**{**document, **tallies})


def warning(step: int, fault: Fault, in_a_row: int, limit: int) -> str:
    """The line for a step that could not learn."""
    return f"warning: step {step} could not learn: {fault.message} ({in_a_row} in a row, the run stops at {limit})"


class Ending(NamedTuple):
    """Why a run fails. words: without the checkpoint that is good."""

    kind: Kind
    words: str

    def error(self, good: str) -> TrainerError:
        """As an exception. good: the checkpoint to go on from, in words."""
        end = step_faults.ENDS[self.kind]
        return end.error(f"{self.words}; the checkpoint that is good: {good}; nothing is exported; hint: {end.hint}")


def stop(record: Record, step: int, limit: int) -> Ending | None:
    """The end of a run whose steps fail one after the other."""
    if record.in_a_row < limit:
        return None
    count, field = record.in_a_row, f"spec.training.maxFailedSteps: {limit}"
    return _for_main(record.row, f"{field}: {count} steps in a row could not learn, the last of them step {step}")


def verdict(record: Record, least: float, now: Sequence[int]) -> Ending | None:
    """Why a run that came to its last step failed all the same. least: the share of steps that must have been able to
    learn; now: digests of the weights."""
    if not record.steps:  # its steps are of before they were counted
        return None
    could = 1.0 - record.failed / record.steps
    none = not record.learned and not record.level
    if record.failed and (none or could < least):
        field = f"spec.training.minLearningShare: {least:g}"
        return _for_main(record.faults, f"{field}: {record.failed} of {record.steps} steps could not learn")
    if none:
        return Ending(Kind.STILL, f"training: no step learned: the gradient was 0 in all {record.steps} steps")
    if record.learned and list(now) == record.first:
        had = f"{record.learned} of {record.steps} steps had a gradient"
        why = "every update was smaller than what the weights' format can tell apart"
        return Ending(Kind.UNCHANGED, f"training: no weight changed: {had}, and {why}")
    return None


def _fault(values: Mapping[str, float], batch: Batch, given: Fault | None) -> Fault | None:
    if values[nonfinite.IN_A_ROW]:
        return Fault(Kind.NON_FINITE, "training", f"{nonfinite.broken(values)} not finite")
    if given is None and not np.any(batch.weight_BT):
        return Fault(Kind.TOKENS, "the batch", "it has no token to train on")
    return given


def _add(tally: Tally, fault: Fault) -> None:
    key = fault.kind, fault.what
    steps, before = tally.get(key, (0, fault._replace(missing=0, of=0)))
    tally[key] = steps + 1, fault._replace(missing=before.missing + fault.missing, of=before.of + fault.of)


def _steps(tally: Tally) -> int:
    return sum(steps for steps, _ in tally.values())


def _to_json(tally: Tally) -> list[Any]:
    return [[steps, step_faults.to_json(fault)] for steps, fault in tally.values()]


def _tally(document: Sequence[Any]) -> Tally:
    found = [(steps, fault) for steps, one in document if (fault := step_faults.from_json(one)) is not None]
    return {(fault.kind, fault.what): (steps, fault) for steps, fault in found}


def _for_main(tally: Tally, words: str) -> Ending:
    """With the reason of most failed steps."""
    steps, fault = max(tally.values(), key=lambda found: found[0])
    return Ending(fault.kind, f"{words}; {steps} of them for this reason: {fault.message}")
