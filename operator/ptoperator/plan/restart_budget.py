"""Correct the JobSet's restart decisions, which are sometimes too lenient or too strict. Pure.

A JobSet knows exit codes and disruption. It restarts a job that will fail the same way (out of HBM, known only from a
message), and it charges `maxRestarts` for a machine that broke without a Kubernetes disruption (a TPU host under repair
rejects pods within seconds, and three restarts are used up in a minute). The first is ended here; for the second the
JobSet is recreated, after a growing pause, with what is left of the budget. So it is for a sampler or
service that its Job makes no more, where supervisors restart the trainer and the JobSet nothing.
"""

from ptapi.failures import REACTIONS, FailureClass
from ptapi.status import FailureStatus
from ptkube import timestamps
from ptkube.backoff import pause_s
from ptkube.resources import Manifest
from ptoperator.observe import elastic_slices
from ptoperator.observe.state import Observed
from ptoperator.plan.step_result import PlanContext, StepResult, delete_jobset
from ptoperator.render.failure_policy import REACHED_MAX
from ptoperator.status import terminal_phases, waiting_phases
from ptoperator.status.restart_counts import (
    charged_restarts,
    failure_of_jobset,
    is_verdict,
    restart_counts,
    spent_beside,
    with_in_place,
)

INITIAL_BACKOFF_S = 30.0
MAX_BACKOFF_S = 600.0


def not_retryable(context: PlanContext) -> StepResult | None:
    """End a job whose cause recurs each time, or has used up the budget of its class."""
    counts, newest = restart_counts(context.state)
    if newest is None:
        return None
    kind = FailureClass(newest.failure_class)
    limit = REACTIONS[kind].limit
    if not REACTIONS[kind].retried:
        return StepResult(terminal_phases.failed_with(context.layout, newest))
    if limit is not None and counts[kind] > limit:
        return StepResult(
            terminal_phases.failed_with(context.layout, newest, exhausted=f"{kind} was already retried {limit} time(s)")
        )
    return None


def retry_uncharged(context: PlanContext, failed: Manifest) -> StepResult | None:
    """Wait for the machine and recreate the JobSet, if the JobSet's count is used up but the job's is not."""
    state = context.state
    if failed.get("reason") != REACHED_MAX:
        return None
    if is_restart_recorded(state):
        return _recreate_jobset(context, failed)
    cause = failure_of_jobset(state, failed)
    kind = FailureClass(cause.failure_class)
    is_agreed = spent_beside(state, failed) is None and is_verdict(context.layout, cause.exit_code)
    if not REACTIONS[kind].retried or is_agreed:
        return None
    counts, _ = restart_counts(state)
    charged = charged_restarts(with_in_place(counts, elastic_slices.status(state)))
    is_left = charged < context.layout.job.spec.run_policy.max_restarts
    if REACTIONS[kind].charged and not is_left:
        return None
    limit = REACTIONS[kind].limit
    if limit is not None and counts.get(kind, 0) >= limit:
        return None
    return StepResult(waiting_phases.restarting(state, cause, _backoff_s(counts, kind)), requeue_after=0.0)


def is_restart_recorded(state: Observed) -> bool:
    """Return True if status counts a restart that this JobSet did not make, so that it is to be recreated."""
    return sum(state.status.pod_restarts.values()) > state.restarts


def _recreate_jobset(context: PlanContext, failed: Manifest) -> StepResult:
    state = context.state
    cause = state.status.failure or FailureStatus(failure_class=FailureClass.UNKNOWN, message="")
    before = {**state.status.pod_restarts}
    kind = FailureClass(cause.failure_class)
    before[kind] = before.get(kind, 1) - 1
    backoff = _backoff_s(before, kind)
    age = timestamps.seconds_since(str(failed.get("lastTransitionTime") or ""), state.now)
    left = 0.0 if age is None else max(0.0, backoff - age)
    is_waiting = left > 0 or state.is_jobset_deleting
    update = waiting_phases.restarting(state, None, backoff)
    return StepResult(update, () if is_waiting else (delete_jobset(state),), left or None)


def _backoff_s(counts: dict[str, int], kind: FailureClass) -> float:
    """Return the pause, which grows with the restarts of this class. A machine's repair takes minutes."""
    return pause_s(counts.get(kind, 0) + 1, INITIAL_BACKOFF_S, MAX_BACKOFF_S)
