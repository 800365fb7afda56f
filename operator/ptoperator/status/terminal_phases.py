"""Status updates of a finished job, with their messages. Pure."""

from dataclasses import replace

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.errors import SpecError
from ptapi.failures import REACTIONS, FailureClass
from ptapi.run_directory import run_uri
from ptapi.status import FailureStatus, PreflightStatus
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.observe import elastic_slices
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.render.failure_policy import REACHED_MAX
from ptoperator.status import serving
from ptoperator.status.builder import ConditionUpdate, ConditionUpdates, StatusUpdate
from ptoperator.status.hints import hint_for
from ptoperator.status.restart_counts import charged_restarts, failure_of_jobset, is_verdict, spent_beside


def succeeded(layout: Layout, state: Observed) -> StatusUpdate:
    """Report success."""
    steps = f" after {state.run.progress.step} steps" if state.run.progress else ""
    message = f"the trainer finished{steps}; results: {run_uri(layout.job.spec.output.uri, layout.name)}"
    return StatusUpdate(
        Phase.SUCCEEDED,
        {
            ConditionType.RUNNING: ConditionUpdate(False, Reason.SUCCEEDED, message),
            ConditionType.COMPLETE: ConditionUpdate(True, Reason.SUCCEEDED, message),
            **serving.decision(layout, state.run.progress),
        },
    )


def jobset_failed(layout: Layout, state: Observed, condition: Manifest) -> StatusUpdate:
    """Report a failed JobSet: the pod that failed first, or else the JobSet's message."""
    cause = failure_of_jobset(state, condition)
    exhausted = _exhausted(layout, state, condition, cause) if condition.get("reason") == REACHED_MAX else ""
    return failed_with(layout, cause, exhausted=exhausted)


def _exhausted(layout: Layout, state: Observed, condition: Manifest, cause: FailureStatus) -> str:
    """Return which budget is used up, of which part of the job."""
    limit, kind = layout.job.spec.run_policy.max_restarts, FailureClass(cause.failure_class)
    spent = spent_beside(state, condition)
    if spent is not None:
        return (
            f"runPolicy.maxRestarts ({limit}) is exhausted: the job is restarted so often for {spent[0].nouns} that "
            "their own Jobs make no more"
        )
    if is_verdict(layout, cause.exit_code):
        return _exhausted_in_place(layout, state, kind) if REACTIONS[kind].retried else ""
    return f"runPolicy.maxRestarts ({limit}) is exhausted" if sum(state.status.pod_restarts.values()) > 0 else ""


def _exhausted_in_place(layout: Layout, state: Observed, kind: FailureClass) -> str:
    """Return which budget of the supervisors is used up, who restart the trainer without its pods."""
    slices = elastic_slices.status(state)
    counts = slices.restarts if slices else {}
    own = REACTIONS[kind].limit
    if own is not None and counts.get(kind, 0) >= own:
        return f"{kind} was already retried {own} time(s) in place"
    limit = layout.job.spec.run_policy.max_restarts
    done = ", ".join(f"{each} {count}" for each, count in sorted(counts.items()) if charged_restarts({each: count}))
    return f"runPolicy.maxRestarts ({limit}) allows the trainer no more restarts in place{f' ({done})' if done else ''}"


def failed_with(layout: Layout, cause: FailureStatus, *, exhausted: str = "") -> StatusUpdate:
    """Report a failure. exhausted: says which budget is used up."""
    kind = FailureClass(cause.failure_class)
    tried = f"; {exhausted}" if exhausted else ""
    if not exhausted and not REACTIONS[kind].retried:
        tried = "; not retried, because it would fail the same way"
    message = f"{describe_failure(cause)}{tried}"
    hint = hint_for(kind, layout)
    return _failed(kind, f"{message}; hint: {hint}" if hint else message, cause)


def invalid_spec(error: SpecError) -> StatusUpdate:
    """Report an invalid spec. The CRD rejects most of them earlier; the rest fails here, for good."""
    findings = "; ".join(str(finding) for finding in error.findings)
    cause = FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=findings)
    conditions = {ConditionType.VALIDATED: ConditionUpdate(False, Reason.INVALID_SPEC, findings)}
    return _failed(FailureClass.CONFIG_ERROR, findings, cause, conditions)


def output_conflict(layout: Layout, run_directory_owner: str) -> StatusUpdate:
    """Report that another job owns the run directory."""
    run = run_uri(layout.job.spec.output.uri, layout.name)
    message = (
        f"spec.output.uri: the run directory {run} belongs to the PostTrainJob {run_directory_owner}; "
        "hint: use another output.uri or another name, or delete that job"
    )
    cause = FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=message)
    conditions = {ConditionType.VALIDATED: ConditionUpdate(False, Reason.OUTPUT_CONFLICT, message)}
    return _failed(FailureClass.CONFIG_ERROR, message, cause, conditions)


def stage_failed(layout: Layout, cause: FailureStatus) -> StatusUpdate:
    """Report a model that cannot be staged, before any chip is requested."""
    update = failed_with(layout, cause)
    staged = ConditionUpdate(False, Reason.STAGE_FAILED, describe_failure(cause))
    return replace(update, conditions={ConditionType.STAGED: staged, **update.conditions})


def preflight_refused(preflighted: ConditionUpdate, cause: FailureStatus, status: PreflightStatus) -> StatusUpdate:
    """Report preflight's verdict, before any chip is requested."""
    update = _failed(cause.failure_class, cause.message, cause, {ConditionType.PREFLIGHTED: preflighted})
    return replace(update, preflight=status)


def deadline_exceeded(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that `runPolicy.activeDeadlineSeconds` passed."""
    limit = layout.job.spec.run_policy.active_deadline_seconds
    assert limit is not None
    step = f" at step {state.run.progress.step}" if state.run.progress else ""
    message = (
        f"runPolicy.activeDeadlineSeconds: {limit} ({timestamps.duration(limit)}) passed{step}; the pods are stopped"
    )
    return _failed(Reason.DEADLINE_EXCEEDED, message, state.status.failure)


def describe_failure(cause: FailureStatus) -> str:
    """Return `DataError in pod llama-slice-0-0-x7k (exit code 65): row 3 is no JSON`."""
    where = f" in pod {cause.pod}" if cause.pod else ""
    code = f" (exit code {cause.exit_code})" if cause.exit_code is not None else ""
    return f"{cause.failure_class}{where}{code}: {cause.message}"


def _failed(
    reason: str, message: str, cause: FailureStatus | None, conditions: ConditionUpdates | None = None
) -> StatusUpdate:
    return StatusUpdate(
        Phase.FAILED,
        {
            **(conditions or {}),
            ConditionType.RUNNING: ConditionUpdate(False, reason, message),
            ConditionType.FAILED: ConditionUpdate(True, reason, message),
        },
        failure=cause,
    )
