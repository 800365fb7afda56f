"""Guarded steps about failures that the JobSet judged by its own rules, and too kindly or too hard. Pure.

A JobSet knows exit codes and disruption. It starts a job again that will fail the same way (memory that XLA could not
have, said in words only), and it charges `maxRestarts` for a machine that broke without Kubernetes calling it a
disruption (a TPU host under repair refuses pods within seconds, and three restarts are gone in a minute). The first is
ended here; for the second the JobSet is made anew, after a pause that grows, with what is left of the budget.
"""

from __future__ import annotations

from ptapi.failures import REACTIONS, FailureClass
from ptapi.status import FailureStatus
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.observe.state import Observed
from ptoperator.plan.step import Case, Step, delete_jobset
from ptoperator.render.failure_policy import REACHED_MAX
from ptoperator.status import running_phases, terminal_phases
from ptoperator.status.restart_counts import charged_restarts, failure_of_jobset, restart_counts

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0


def hopeless(case: Case) -> Step | None:
    """It restarted for a cause that comes back each time, or once too often for a cause of this class."""
    counts, newest = restart_counts(case.seen)
    if newest is None:
        return None
    kind = FailureClass(newest.failure_class)
    limit = REACTIONS[kind].limit
    if not REACTIONS[kind].retried:
        return Step(terminal_phases.ended(case.layout, newest))
    if limit is not None and counts[kind] > limit:
        return Step(
            terminal_phases.ended(case.layout, newest, exhausted=f"{kind} was tried again {limit} time(s) already")
        )
    return None


def not_charged(case: Case, failed: Manifest) -> Step | None:
    """The JobSet's count is used up, the job's is not: wait for the machine, then make the JobSet anew."""
    seen = case.seen
    if failed.get("reason") != REACHED_MAX:
        return None
    if is_counted(seen):
        return _again(case, failed)
    cause = failure_of_jobset(seen, failed)
    kind = FailureClass(cause.failure_class)
    if not REACTIONS[kind].retried:
        return None
    counts, _ = restart_counts(seen)
    is_left = charged_restarts(counts) < case.layout.job.spec.run_policy.max_restarts
    if REACTIONS[kind].charged and not is_left:
        return None
    limit = REACTIONS[kind].limit
    if limit is not None and counts.get(kind, 0) >= limit:
        return None
    return Step(running_phases.repairing(seen, cause, _pause_s(counts, kind)), requeue_after=0.0)


def is_counted(seen: Observed) -> bool:
    """Whether status counts a restart that this JobSet did not make: it is to be made anew."""
    return sum(seen.status.restarts.values()) > seen.restarts


def _again(case: Case, failed: Manifest) -> Step:
    seen = case.seen
    cause = seen.status.failure or FailureStatus(failure_class=FailureClass.UNKNOWN, message="")
    before = {**seen.status.restarts}
    kind = FailureClass(cause.failure_class)
    before[kind] = before.get(kind, 1) - 1
    pause = _pause_s(before, kind)
    age = timestamps.seconds_since(str(failed.get("lastTransitionTime") or ""), seen.now)
    left = 0.0 if age is None else max(0.0, pause - age)
    is_waiting = left > 0 or seen.is_jobset_deleting
    situation = running_phases.repairing(seen, None, pause)
    return Step(situation, () if is_waiting else (delete_jobset(seen),), left or None)


def _pause_s(counts: dict[str, int], kind: FailureClass) -> float:
    """Before the next try; grows with the tries that this class has cost. A machine's repair takes minutes."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(counts.get(kind, 0), 10))
