"""Preflight: check whether the job fits its chips before they are requested. Pure.

A Job on a CPU node compiles the job's own step (`render.preflight_job`) and reports in its termination message; this
module interprets the report. Only a verdict may end a job. Whatever prevents one (no node, no image, a crash, no time)
is not the job's fault: the formula's verdict counts if the pod left one, otherwise the job goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.failures import ExitCode, FailureClass
from ptapi.status import FailureStatus, PreflightStatus
from ptkube import timestamps
from ptkube.objects import holds, is_deleting, true_condition
from ptkube.resources import CONFIGMAPS, JOBS, Manifest
from ptoperator.failures import pod_failures
from ptoperator.kube.actions import Action, Create, Delete, deletion
from ptoperator.observe.state import Observed, is_scheduled, is_started, why_unscheduled
from ptoperator.plan.step_result import PlanContext, StepResult
from ptoperator.render import config_map, preflight_job
from ptoperator.render.preflight_job import deadline_s
from ptoperator.status import terminal_phases
from ptoperator.status.builder import ConditionUpdate, StatusUpdate

_VERDICTS = (ExitCode.OK, ExitCode.OUT_OF_MEMORY_HBM, ExitCode.CONFIG_ERROR)
"""Exit codes of a preflight that came to its end; after any other it may be tried again."""
_LATE_S = 60.0
"""The Job controller ends what is late itself; this long after, the operator does."""


@dataclass(frozen=True)
class PreflightResult:
    """The result of preflight. job_error: why the job itself is invalid."""

    status: PreflightStatus
    job_error: str = ""
    pod: str = ""
    exit_code: int | None = None


def preflight_pending(context: PlanContext) -> StepResult | None:
    """Run preflight before chips are requested."""
    state, layout = context.state, context.layout
    if layout.preflight == "Skip" or not state.is_preflight_open:
        return None
    if state.rejection:
        return _decide(context, _undecided(f"the API server rejects a request: {state.rejection}"))
    job = state.preflight.job
    poll_s = context.settings.progress_seconds
    if job is None:
        manifest = preflight_job(layout)
        actions: tuple[Action, ...] = (Create(CONFIGMAPS, config_map(layout)), Create(JOBS, manifest))
        return StepResult(_running(f"Job {manifest['metadata']['name']} is created"), actions, poll_s)
    if is_deleting(job):
        return StepResult(_running("waiting for the previous preflight Job to be deleted"), requeue_after=poll_s)
    result = _result(context, job)
    if result is None:
        return StepResult(_running(waiting_message(state, state.preflight.pods)), requeue_after=poll_s)
    return _decide(context, result)


def delete_preflight(state: Observed) -> tuple[Delete, ...]:
    """Stop an unfinished preflight of a job that is suspended or goes on without it."""
    job = state.preflight.job
    if job is None or is_deleting(job) or holds(job, "Complete"):
        return ()
    return (deletion(JOBS, job, state.job.namespace),)


def _decide(context: PlanContext, result: PreflightResult) -> StepResult:
    status, mode = result.status, context.layout.preflight
    is_refused = bool(result.job_error) or status.outcome == "DoesNotFit"
    preflighted = _condition(result)
    if is_refused and mode == "Enforce":
        kind = FailureClass.CONFIG_ERROR if result.job_error else FailureClass.OUT_OF_MEMORY_HBM
        cause = FailureStatus(
            failure_class=kind, message=preflighted.message, exit_code=result.exit_code, pod=result.pod
        )
        return StepResult(terminal_phases.preflight_refused(preflighted, cause, status))
    actions = delete_preflight(context.state) if status.outcome == "Undecided" else ()
    update = StatusUpdate(Phase.PREFLIGHT, {ConditionType.PREFLIGHTED: preflighted}, preflight=status)
    return StepResult(update, actions, requeue_after=0.0)


def _condition(result: PreflightResult) -> ConditionUpdate:
    """Return the condition: one line, and what to change if the job does not fit."""
    status = result.status
    if result.job_error:
        return ConditionUpdate(False, Reason.INVALID_SPEC, result.job_error)
    if status.outcome == "Fits":
        return ConditionUpdate(True, Reason.FITS, status.line)
    if status.outcome == "Undecided":
        return ConditionUpdate(False, Reason.PREFLIGHT_UNDECIDED, f"{status.line}; the job continues without a verdict")
    return ConditionUpdate(False, Reason.DOES_NOT_FIT, f"{status.line}{_changes_message(status)}")


def _changes_message(status: PreflightStatus) -> str:
    fitting = "; ".join(
        f"{each.change} ({each.settings}): {each.peak_gib:.1f} of {each.available_gib:.1f} GiB"
        for each in status.changes
    )
    held = f"; smallest slices that hold it: {', '.join(status.smallest)}" if status.smallest else ""
    return f"; it fits with {fitting}{held}" if fitting else held


def _running(message: str) -> StatusUpdate:
    condition = ConditionUpdate(
        False, Reason.PREFLIGHT_RUNNING, f"compiling the job's step for its chips on a CPU: {message}"
    )
    return StatusUpdate(Phase.PREFLIGHT, {ConditionType.PREFLIGHTED: condition})


def waiting_message(state: Observed, pods: Sequence[Manifest]) -> str:
    """Return what the pods of a Job that runs before there are chips wait for."""
    for pod in pods:
        stuck = pod_failures.start_failure(pod, state.pull_errors)
        message = stuck.message if stuck is not None else why_unscheduled(pod)
        if message:
            return f"pod {pod['metadata']['name']} waits: {message}"
    if state.creation_failure is not None:
        return state.creation_failure.message
    if any(map(is_started, pods)):
        return "the pod runs"
    return "the pod is starting" if any(map(is_scheduled, pods)) else "the pod has no node yet"


def _result(context: PlanContext, job: Manifest) -> PreflightResult | None:
    """Return the verdict, or that there will be none; None while it may come."""
    results = [result for result in map(_pod_result, context.state.preflight.pods) if result is not None]
    final = next((result for result in results if result.exit_code in _VERDICTS), None)
    if final is not None:
        return final
    reason = _failure_reason(context, job)
    if reason is None:
        return None
    provisional = next((result for result in results if result.status.peak_gib is not None), None)
    if provisional is None:
        return _undecided(f"preflight did not finish: {reason}")
    status = provisional.status
    return PreflightResult(status.model_copy(update={"line": f"{status.line} (the compile did not finish: {reason})"}))


def _pod_result(pod: Manifest) -> PreflightResult | None:
    """Return what a pod reported when it ended, or None."""
    terminations = (
        (each.get("state") or {}).get("terminated") for each in pod["status"].get("containerStatuses") or []
    )
    terminated = next((terminated for terminated in terminations if terminated), None)
    results = pod_failures.termination(terminated.get("message") or "") if terminated else None
    if terminated is None or results is None:
        return None
    code, name = int(terminated["exitCode"]), str(pod["metadata"]["name"])
    if code == ExitCode.CONFIG_ERROR:
        return PreflightResult(PreflightStatus(outcome="Undecided", line=results.message), results.message, name, code)
    return PreflightResult(results.preflight, pod=name, exit_code=code) if results.preflight is not None else None


def _failure_reason(context: PlanContext, job: Manifest) -> str | None:
    """Return why no verdict will come; None while one may."""
    state = context.state
    failed = true_condition(job, "Failed")
    manifest = job["metadata"].get("creationTimestamp")
    age = timestamps.seconds_since(str(manifest), state.now) if manifest else None
    is_late = age is not None and (age >= deadline_s(context.layout) + _LATE_S or _cannot_start(context, age))
    if failed is None and not is_late and not holds(job, "Complete"):
        return None
    failures = [result for result in map(pod_failures.pod_failure, state.preflight.pods) if result is not None]
    if failures:
        return failures[-1].message
    if failed is not None:
        return str(failed.get("message") or failed.get("reason") or "its Job failed")
    return waiting_message(state, state.preflight.pods) if is_late else "its pod exited without a termination message"


def _cannot_start(context: PlanContext, age_s: float) -> bool:
    """Return True if the pod has had no node, or not its image, for too long."""
    pods = context.state.preflight.pods
    is_stuck = not any(map(is_scheduled, pods)) or any(pod_failures.start_failure(pod) is not None for pod in pods)
    return is_stuck and age_s >= context.settings.start_failure_seconds


def _undecided(reason: str) -> PreflightResult:
    return PreflightResult(PreflightStatus(outcome="Undecided", line=reason))
