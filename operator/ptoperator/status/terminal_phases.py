"""How a job ends: situations that are final, and the words for them. Pure."""

from __future__ import annotations

from dataclasses import replace

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.errors import SpecError
from ptapi.failures import REACTIONS, FailureClass
from ptapi.run_directory import run_uri
from ptapi.status import FailureStatus, PreflightStatus
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.render.failure_policy import REACHED_MAX
from ptoperator.status.builder import Say, Says, Situation
from ptoperator.status.hints import advice
from ptoperator.status.restart_counts import failure_of_jobset


def succeeded(layout: Layout, seen: Observed) -> Situation:
    steps = f" after {seen.progress.step} steps" if seen.progress else ""
    message = f"the trainer finished{steps}; results: {run_uri(layout.job.spec.output.uri, layout.name)}"
    return Situation(
        Phase.SUCCEEDED,
        {
            ConditionType.RUNNING: Say(False, Reason.SUCCEEDED, message),
            ConditionType.COMPLETE: Say(True, Reason.SUCCEEDED, message),
        },
    )


def failed(layout: Layout, seen: Observed, condition: Manifest) -> Situation:
    """The JobSet failed: for the pod that failed first, or, if no pod says, in the JobSet's words."""
    cause = failure_of_jobset(seen, condition)
    is_exhausted = condition.get("reason") == REACHED_MAX and sum(seen.status.restarts.values()) > 0
    limit = layout.job.spec.run_policy.max_restarts
    return ended(layout, cause, exhausted=f"runPolicy.maxRestarts ({limit}) is used up" if is_exhausted else "")


def ended(layout: Layout, cause: FailureStatus, *, exhausted: str = "") -> Situation:
    """Failed for this cause. exhausted: the budget that is used up, in words."""
    kind = FailureClass(cause.failure_class)
    tried = f"; {exhausted}" if exhausted else ""
    if not exhausted and not REACTIONS[kind].retried:
        tried = "; not tried again, it would end the same way"
    message = f"{words(cause)}{tried}"
    hint = advice(kind, layout)
    return _over(kind, f"{message}; hint: {hint}" if hint else message, cause)


def invalid(error: SpecError) -> Situation:
    """The spec cannot be run. The CRD refuses most of this earlier; what it lets through ends here, for good."""
    findings = "; ".join(str(finding) for finding in error.findings)
    cause = FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=findings)
    says = {ConditionType.VALIDATED: Say(False, Reason.INVALID_SPEC, findings)}
    return _over(FailureClass.CONFIG_ERROR, findings, cause, says)


def output_conflict(layout: Layout, rival: str) -> Situation:
    run = run_uri(layout.job.spec.output.uri, layout.name)
    message = (
        f"spec.output.uri: the run directory {run} belongs to the PostTrainJob {rival}; "
        "hint: use another output.uri or another name, or delete that job"
    )
    cause = FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=message)
    says = {ConditionType.VALIDATED: Say(False, Reason.OUTPUT_CONFLICT, message)}
    return _over(FailureClass.CONFIG_ERROR, message, cause, says)


def refused(preflighted: Say, cause: FailureStatus, status: PreflightStatus) -> Situation:
    """Preflight's verdict, before a chip was asked for."""
    over = _over(cause.failure_class, cause.message, cause, {ConditionType.PREFLIGHTED: preflighted})
    return replace(over, preflight=status)


def deadline_exceeded(layout: Layout, seen: Observed) -> Situation:
    limit = layout.job.spec.run_policy.active_deadline_seconds
    assert limit is not None
    step = f" at step {seen.progress.step}" if seen.progress else ""
    message = (
        f"runPolicy.activeDeadlineSeconds: {limit} ({timestamps.duration(limit)}) passed{step}; the pods are stopped"
    )
    return _over(Reason.DEADLINE_EXCEEDED, message, seen.status.failure)


def words(cause: FailureStatus) -> str:
    """`DataError in pod llama-slice-0-0-x7k (exit code 65): row 3 is no JSON`."""
    where = f" in pod {cause.pod}" if cause.pod else ""
    code = f" (exit code {cause.exit_code})" if cause.exit_code is not None else ""
    return f"{cause.failure_class}{where}{code}: {cause.message}"


def _over(reason: str, message: str, cause: FailureStatus | None, says: Says | None = None) -> Situation:
    return Situation(
        Phase.FAILED,
        {
            **(says or {}),
            ConditionType.RUNNING: Say(False, reason, message),
            ConditionType.FAILED: Say(True, reason, message),
        },
        failure=cause,
    )
