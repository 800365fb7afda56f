"""Count restarts by failure class. Pure.

A JobSet only counts. Whatever it counted beyond status is classified now, from that attempt's pods, or else from the
JobSet's rule, or else from the run directory. A recreated JobSet counts from 0 and carries the earlier count in an
annotation.
"""

import re

from ptapi.accelerators.roles import Role
from ptapi.conditions import ConditionType, Reason
from ptapi.failures import EXIT_CLASSES, REACTIONS, ExitCode, FailureClass
from ptapi.status import FailureStatus, SlicesStatus
from ptkube.resources import Manifest
from ptoperator.failures import pod_failures
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.kube import names
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.render.failure_policy import DISRUPTED, REACHED_MAX, RESTART_REASON_PREFIX, SAVED

_FIRST_FAILED = re.compile(r"\(first failed job: (\S+)\)")
"""How JobSet's messages end."""
_FREE = (f"{RESTART_REASON_PREFIX}{DISRUPTED}", f"{RESTART_REASON_PREFIX}{SAVED}")


def restart_counts(state: Observed) -> tuple[dict[str, int], FailureStatus | None]:
    """Return restarts of all pods by class, and the failure behind the newest one if it is new."""
    counts = dict(state.status.pod_restarts)
    known = sum(counts.values())
    newest: FailureStatus | None = None
    for attempt in range(max(0, known - state.restarts_before), state.jobset_restarts):
        newest = _cause_of(state, attempt)
        counts[newest.failure_class] = counts.get(newest.failure_class, 0) + 1
    return counts, newest


def with_in_place(counts: dict[str, int], slices: SlicesStatus | None) -> dict[str, int]:
    """Return restarts of all pods and of trainers in place together, by class."""
    in_place = {} if slices is None else slices.restarts
    return {kind: counts.get(kind, 0) + in_place.get(kind, 0) for kind in (*counts, *in_place)}


def charged_restarts(counts: dict[str, int]) -> int:
    """Return how many of them count against `runPolicy.maxRestarts`."""
    return sum(
        count for kind, count in counts.items() if kind in set(FailureClass) and REACTIONS[FailureClass(kind)].charged
    )


def failure_of_jobset(state: Observed, condition: Manifest) -> FailureStatus:
    """Return why the JobSet failed: the pod that failed first, or the run directory, or the JobSet's message."""
    spent = spent_beside(state, condition)
    if spent is not None:
        return _failure_beside(state, *spent)
    # A supervised run has pods that failed long ago and were replaced; its end is what supervisors agreed on.
    failures = tuple(each for each in state.failures if _is_verdict_of(state.layout, each)) or state.failures
    failure = pod_failures.cause(failures, state.jobset_restarts, charged=True)
    cause = _hang(state) or (failure_status(failure) if failure else from_run_directory(state))
    message = str(condition.get("message") or "")
    return cause or FailureStatus(failure_class=FailureClass.UNKNOWN, message=message)


def spent_beside(state: Observed, condition: Manifest) -> tuple[Role, int] | None:
    """Return whose Job, of a sampler or a service, ended the JobSet because it had failed too often; None if none."""
    first = _FIRST_FAILED.search(str(condition.get("message") or ""))
    if first is None or state.layout is None or condition.get("reason") != REACHED_MAX:
        return None
    jobset, beside = state.layout.jobset, state.layout.beside
    jobs = {names.role_job(jobset, role.name, index): (role, index) for role in beside for index in range(role.count)}
    return jobs.get(first.group(1))


def is_verdict(layout: Layout | None, exit_code: int | None) -> bool:
    """Return True if a trainer's pod with this exit code ended a supervised run: restarts are spent, or no help."""
    is_final = exit_code in EXIT_CLASSES and exit_code != ExitCode.PREEMPTED_SAVED
    return layout is not None and layout.is_supervised and is_final


def _is_verdict_of(layout: Layout | None, failure: PodFailure) -> bool:
    return not failure.is_beside and is_verdict(layout, failure.exit_code)


def _failure_beside(state: Observed, role: Role, index: int) -> FailureStatus:
    """Return why this sampler, or replica, failed once more than its Job may make it anew."""
    layout = state.layout
    assert layout is not None
    pods = f"{names.role_job(layout.jobset, role.name, index)}-"
    failures = [each for each in state.failures if each.pod.startswith(pods)]
    failure = pod_failures.cause(failures, state.jobset_restarts, charged=True)
    limit = layout.backoff_limit(role)
    message = f"{role.noun} {index} failed more than {limit} time{'' if limit == 1 else 's'}, all that its Job allows"
    if failure is None:
        return FailureStatus(failure_class=FailureClass.UNKNOWN, message=message)
    cause = failure_status(failure)
    return cause.model_copy(update={"message": f"{message}: {cause.message}"})


def failure_status(failure: PodFailure) -> FailureStatus:
    """Convert a pod failure to status."""
    return FailureStatus(
        failure_class=failure.kind,
        message=failure.message,
        exit_code=failure.exit_code,
        pod=failure.pod,
        node=failure.node,
        log=failure.log,
        time=failure.time,
    )


def _cause_of(state: Observed, attempt: int) -> FailureStatus:
    is_newest = attempt == state.jobset_restarts - 1
    if is_newest and (hang := _hang(state)) is not None:
        return hang
    reason = _restart_reason(state) if is_newest else ""
    charged = (reason not in _FREE) if reason else None
    failure = pod_failures.cause(state.failures, attempt, charged=charged)
    if failure is not None:
        return failure_status(failure)
    if reason in _FREE:
        return FailureStatus(failure_class=FailureClass.PREEMPTED, message="the pods were stopped externally")
    return from_run_directory(state) or FailureStatus(
        failure_class=FailureClass.UNKNOWN, message="the pods were deleted before the operator read why they failed"
    )


def _hang(state: Observed) -> FailureStatus | None:
    """Return the hang for which the operator ended the attempt; status says so before the pods are deleted."""
    running = state.status.condition(ConditionType.RUNNING)
    if running is None or running.reason != Reason.HANG:
        return None
    return FailureStatus(failure_class=FailureClass.HANG, message=running.message, time=running.last_transition_time)


def from_run_directory(state: Observed) -> FailureStatus | None:
    """Return the failure that the trainer wrote into its run directory, or None."""
    termination = state.run.termination
    if termination is None or termination.exit_code == 0 or termination.failure_class not in set(FailureClass):
        return None
    return FailureStatus(
        failure_class=termination.failure_class, message=termination.message, exit_code=termination.exit_code
    )


def _restart_reason(state: Observed) -> str:
    """Return the rule by which the JobSet restarted; empty once it is over, and before JobSet 0.12."""
    condition = state.jobset_condition("RestartingJobSet")
    return str(condition.get("reason") or "") if condition else ""
