"""Staging: copy the model into the bucket before chips are requested, and before preflight reads its config. Pure.

A Job on a CPU node copies it (`render.stage_job`) and names the copy in its termination message; the status keeps that,
and the job's pods read the model there. Unlike preflight's, its failure ends the job: without the copy there is no
model to train.
"""

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.failures import FATAL_EXIT_CODES, FailureClass
from ptapi.status import FailureStatus
from ptkube import timestamps
from ptkube.objects import container_statuses, holds, is_deleting, true_condition
from ptkube.resources import JOBS, Manifest
from ptoperator.failures import pod_failures
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.kube.actions import Create, Delete, deletion
from ptoperator.observe.state import Observed
from ptoperator.plan.preflight import waiting_message
from ptoperator.plan.step_result import PlanContext, StepResult
from ptoperator.render import stage_job
from ptoperator.status import terminal_phases
from ptoperator.status.builder import ConditionUpdate, StatusUpdate


def staging_pending(context: PlanContext) -> StepResult | None:
    """Stage the model before chips are requested."""
    state = context.state
    if not state.is_staging_open:
        return None
    if state.rejection:
        return _failed(context, FailureClass.CONFIG_ERROR, f"the API server rejects a request: {state.rejection}")
    job, poll_s = state.staging.job, context.settings.progress_seconds
    if job is None:
        manifest = stage_job(context.layout)
        message = f"Job {manifest['metadata']['name']} is created"
        return StepResult(_running(context, message), (Create(JOBS, manifest),), poll_s)
    if is_deleting(job):
        return StepResult(_running(context, "waiting for the previous Job to be deleted"), requeue_after=poll_s)
    return _decided(context, job) or StepResult(_running(context, _progress(state)), requeue_after=poll_s)


def delete_staging(state: Observed) -> tuple[Delete, ...]:
    """Stop the staging of a job that is suspended; what is copied stays, and the next Job goes on from there."""
    job = state.staging.job
    return () if job is None or is_deleting(job) else (deletion(JOBS, job, state.job.namespace),)


def _decided(context: PlanContext, job: Manifest) -> StepResult | None:
    """Return the copy, or that there will be none; None while it may come."""
    state = context.state
    copy = next(filter(None, map(_copy_of, state.staging.pods)), "")
    if copy:
        staged = ConditionUpdate(True, Reason.STAGED, f"the job reads {context.layout.job.spec.model.uri} from {copy}")
        update = StatusUpdate(Phase.PREFLIGHT, {ConditionType.STAGED: staged}, staged_model=copy)
        return StepResult(update, requeue_after=0.0)
    if holds(job, "Complete"):  # its pod is gone, and with it the name of the copy; a second Job copies nothing
        message = "the previous pod is gone; its Job is made again"
        return StepResult(_running(context, message), delete_staging(state), context.settings.progress_seconds)
    failed = true_condition(job, "Failed")
    last = _last_failure(state)
    if last is not None and (failed is not None or last.exit_code in FATAL_EXIT_CODES):
        return _failed(context, last.kind, last.message, last.pod, last.exit_code)
    if failed is not None:
        return _failed(context, FailureClass.UNKNOWN, str(failed.get("message") or failed.get("reason") or "it failed"))
    return _cannot_start(context)


def _copy_of(pod: Manifest) -> str:
    """Return the URI of the copy that a pod reported when it ended; empty before."""
    for container in container_statuses(pod):
        terminated = (container.get("state") or {}).get("terminated") or {}
        report = pod_failures.termination(terminated.get("message") or "")
        if report is not None and report.staged and terminated.get("exitCode") == 0:
            return report.staged
    return ""


def _last_failure(state: Observed) -> PodFailure | None:
    failures = filter(None, map(pod_failures.pod_failure, state.staging.pods))
    return max(failures, key=lambda each: each.time, default=None)


def _cannot_start(context: PlanContext) -> StepResult | None:
    """End the job if its pod has been unable to start for too long, as one with chips would."""
    state = context.state
    failures = (pod_failures.start_failure(pod, state.pull_errors) for pod in state.staging.pods)
    for failure in filter(None, failures):
        age = timestamps.seconds_since(failure.since, state.now)
        if age is not None and age >= context.settings.start_failure_seconds:
            return _failed(context, failure.kind, failure.message, failure.pod)
    return None


def _failed(
    context: PlanContext, kind: FailureClass, message: str, pod: str = "", exit_code: int | None = None
) -> StepResult:
    time = timestamps.to_text(context.state.now)
    message = f"the model cannot be staged: {message}"
    cause = FailureStatus(failure_class=kind, message=message, exit_code=exit_code, pod=pod, time=time)
    return StepResult(terminal_phases.stage_failed(context.layout, cause))


def _has_failed(pod: Manifest) -> bool:
    return pod_failures.pod_failure(pod) is not None


def _progress(state: Observed) -> str:
    """Return what the Job does, and why it is at it again."""
    waiting = waiting_message(state, [pod for pod in state.staging.pods if not _has_failed(pod)])
    last, failed = _last_failure(state), sum(map(_has_failed, state.staging.pods))
    return waiting if last is None else f"{waiting}; try {failed} failed with {last.kind}: {last.message}"


def _running(context: PlanContext, message: str) -> StatusUpdate:
    model = context.layout.job.spec.model.uri
    condition = ConditionUpdate(False, Reason.STAGING, f"copying {model} into the bucket, on a CPU: {message}")
    return StatusUpdate(Phase.PREFLIGHT, {ConditionType.STAGED: condition})
