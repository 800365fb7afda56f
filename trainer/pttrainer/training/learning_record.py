"""Count the steps that could not learn, by reason, and end a run that does not learn.

A step is one of four:

    level     its rewards exist and are all equal: there is nothing to learn, which is no fault
    learned   its gradient is finite and not 0
    still     its gradient is 0 for another reason, such as pairs that are mastered
    failed    something that it needed is missing or broken (`faults`): it could not learn

A run fails when too many of its steps failed, when none learned and none was level, or when all of them together
changed no weight. Only failed steps count against the share: a model that solves every prompt, or none, is no fault. A
circuit breaker looks at samples: too many of the last ones without a reward end the run, though its steps learn.

The record is part of every checkpoint, so a resumed run goes on counting. Everything here is pure. All processes count
alike, but only the leader knows the error text of a failed reward.
"""

from collections import Counter
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
"""The number of failed steps by fault kind and part of the job, with the last fault and all their samples."""


@dataclass
class LearningRecord:
    """The outcome of a run's steps so far.

    first: digests of the initial weights; good: the last step that did not fail; faults: those of the whole run;
    row: those of the failed steps since the last good one; recent: of the last steps, the samples without a reward and
    why.
    """

    first: list[int] = field(default_factory=list)
    steps: int = 0
    learned: int = 0
    level: int = 0
    good: int = 0
    faults: Tally = field(default_factory=dict)
    row: Tally = field(default_factory=dict)
    recent: list[Fault] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Return the number of failed steps of the run."""
        return _steps(self.faults)

    @property
    def in_a_row(self) -> int:
        """Return the number of failed steps since the last good one."""
        return _steps(self.row)

    def count(self, step: int, values: Mapping[str, float], batch: Batch, batch_fault: Fault | None) -> Fault | None:
        """Count a step, and return why it could not learn, if it could not.

        batch_fault: what the algorithm reports about its batch.
        """
        self.steps += 1
        fault = _fault(values, batch, batch_fault)
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

    def watch(self, missing: Fault | None, samples: int) -> None:
        """Count a step's samples without a reward; keep the steps of the last `samples` samples."""
        if missing is None:
            return
        self.recent.append(missing)
        while sum(fault.of for fault in self.recent[1:]) >= samples:
            self.recent.pop(0)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON, for a checkpoint."""
        tallies = {name: _to_json(tally) for name, tally in (("faults", self.faults), ("row", self.row))}
        return {**vars(self), **tallies, "recent": [step_faults.to_json(fault) for fault in self.recent]}


def from_json(document: Mapping[str, Any]) -> LearningRecord:
    """Return the record that `LearningRecord.to_json` wrote; a new one for a checkpoint without a record."""
    tallies = {name: _tally(document[name]) for name in ("faults", "row") if document}
    # Older checkpoints have no recent steps.
    recent = [fault for one in document.get("recent", ()) if (fault := step_faults.from_json(one)) is not None]
    return LearningRecord(**{**document, **tallies, "recent": recent})


def warning(step: int, fault: Fault, in_a_row: int, limit: int) -> str:
    """Return the log line for a step that could not learn."""
    return f"warning: step {step} could not learn: {fault.message} ({in_a_row} in a row, the run stops at {limit})"


class RunFailure(NamedTuple):
    """The reason why a run fails. message: its text, without the last good checkpoint."""

    kind: Kind
    message: str

    def error(self, good: str) -> TrainerError:
        """Return the failure as an exception. good: a description of the checkpoint to resume from."""
        end = step_faults.ENDS[self.kind]
        return end.error(f"{self.message}; last good checkpoint: {good}; nothing is exported; hint: {end.hint}")


def stop(record: LearningRecord, step: int, limit: int) -> RunFailure | None:
    """Return the failure of a run with `limit` failed steps in a row, or None."""
    if record.in_a_row < limit:
        return None
    count, field = record.in_a_row, f"spec.training.maxFailedSteps: {limit}"
    return _for_main(record.row, f"{field}: {count} steps in a row could not learn, the last of them step {step}")


def broken(record: LearningRecord, step: int, most: float, samples: int) -> RunFailure | None:
    """Return the failure of a run whose circuit breaker opened, or None.

    most: largest share of the last `samples` samples that may lack a reward.
    """
    missing, of = (sum(getattr(fault, name) for fault in record.recent) for name in ("missing", "of"))
    if of < samples or missing <= most * of:
        return None
    counts: Counter[tuple[Kind, str]] = Counter()
    for fault in record.recent:
        counts[fault.kind, fault.what] += fault.missing
    kind, what = counts.most_common(1)[0][0]
    last = next(fault for fault in reversed(record.recent) if (fault.kind, fault.what) == (kind, what))
    field = f"spec.training.circuitBreaker.maxMissing: {most:g}"
    ended = f"{missing} of the last {of} samples have no reward at step {step}, {counts[kind, what]} of them of {what}"
    return RunFailure(kind, f"{field}: {ended}{f', the last: {last.detail}' if last.detail else ''}")


def verdict(record: LearningRecord, least: float, now: Sequence[int]) -> RunFailure | None:
    """Return the failure of a run that reached its last step without learning enough, or None.

    least: share of steps that must have been able to learn; now: digests of the weights.
    """
    if not record.steps:  # its steps precede the record
        return None
    could = 1.0 - record.failed / record.steps
    none = not record.learned and not record.level
    if record.failed and (none or could < least):
        field = f"spec.training.minLearningShare: {least:g}"
        return _for_main(record.faults, f"{field}: {record.failed} of {record.steps} steps could not learn")
    if none:
        return RunFailure(Kind.STILL, f"training: no step learned: the gradient was 0 in all {record.steps} steps")
    if record.learned and list(now) == record.first:
        had = f"{record.learned} of {record.steps} steps had a gradient"
        why = "every update was below the resolution of the weights' number format"
        return RunFailure(Kind.UNCHANGED, f"training: no weight changed: {had}, and {why}")
    return None


def _fault(values: Mapping[str, float], batch: Batch, batch_fault: Fault | None) -> Fault | None:
    if values[nonfinite.IN_A_ROW]:
        return Fault(Kind.NON_FINITE, "training", f"{nonfinite.broken(values)} not finite")
    if batch_fault is None and not np.any(batch.weight_BT):
        return Fault(Kind.TOKENS, "the batch", "it has no token to train on")
    return batch_fault


def _add(tally: Tally, fault: Fault) -> None:
    key = fault.kind, fault.what
    steps, before = tally.get(key, (0, fault._replace(missing=0, of=0)))
    tally[key] = steps + 1, fault._replace(missing=before.missing + fault.missing, of=before.of + fault.of)


def _steps(tally: Tally) -> int:
    return sum(steps for steps, _ in tally.values())


def _to_json(tally: Tally) -> list[Any]:
    return [[steps, step_faults.to_json(fault)] for steps, fault in tally.values()]


def _tally(document: Sequence[Any]) -> Tally:
    counted = [(steps, fault) for steps, one in document if (fault := step_faults.from_json(one)) is not None]
    return {(fault.kind, fault.what): (steps, fault) for steps, fault in counted}


def _for_main(tally: Tally, message: str) -> RunFailure:
    """Return the failure with the most common reason."""
    steps, fault = max(tally.values(), key=lambda counted: counted[0])
    return RunFailure(fault.kind, f"{message}; {steps} of them for this reason: {fault.message}")
