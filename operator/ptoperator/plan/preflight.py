"""The guarded step before chips are asked for: does the job fit them? Pure.

A Job on a CPU node compiles the job's own step (`render.preflight`) and says what it found in its termination message;
here stands what that means. Only a verdict may end a job. Whatever keeps preflight from a verdict (no node, no image, a
crash, no time) is not the job's fault: the formula's verdict counts where the pod left one, else the job goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.failures import ExitCode, FailureClass
from ptapi.status import FailureStatus, PreflightStatus
from ptkube import timestamps
from ptkube.objects import holds, is_deleting, true_condition
from ptkube.resources import CONFIGMAPS, JOBS, Manifest
from ptoperator.failures import pod_failures
from ptoperator.kube.actions import Action, Create, Delete, deletion
from ptoperator.observe.state import Observed, is_scheduled, why_unscheduled
from ptoperator.plan.step import Case, Step
from ptoperator.render import config_map, preflight_job
from ptoperator.render.preflight_job import deadline_s
from ptoperator.status import terminal_phases
from ptoperator.status.builder import Say, Situation

_VERDICTS = (ExitCode.OK, ExitCode.OUT_OF_MEMORY_HBM, ExitCode.CONFIG_ERROR)
"""Exit codes of a preflight that came to its end; after any other it may be tried again."""
_LATE_S = 60.0
"""The Job controller ends what is late itself; this long after, the operator does."""


@dataclass(frozen=True)
class Found:
    """What preflight came to. wrong: the job is wrong in itself, in these words."""

    status: PreflightStatus
    wrong: str = ""
    pod: str = ""
    exit_code: int | None = None


def preflight_first(case: Case) -> Step | None:
    """Preflight first, chips after."""
    seen, layout = case.seen, case.layout
    if layout.preflight == "Skip" or not seen.is_preflight_open:
        return None
    if seen.obstacle:
        return _decided(case, _undecided(f"the API server refuses: {seen.obstacle}"))
    job = seen.preflight_job
    poll_s = case.settings.progress_seconds
    if job is None:
        made = preflight_job(layout)
        actions: tuple[Action, ...] = (Create(CONFIGMAPS, config_map(layout)), Create(JOBS, made))
        return Step(_running(f"job {made['metadata']['name']} is made"), actions, poll_s)
    if is_deleting(job):
        return Step(_running("waiting for an earlier preflight to go away"), requeue_after=poll_s)
    found = _found(case, job)
    if found is None:
        return Step(_running(_waiting_words(seen)), requeue_after=poll_s)
    return _decided(case, found)


def delete_preflight(seen: Observed) -> tuple[Delete, ...]:
    """Stops a preflight that is not over, for a job that is to hold still."""
    job = seen.preflight_job
    if job is None or is_deleting(job) or holds(job, "Complete"):
        return ()
    return (deletion(JOBS, job, seen.namespace),)


def _decided(case: Case, found: Found) -> Step:
    status, mode = found.status, case.layout.preflight
    is_refused = bool(found.wrong) or status.outcome == "DoesNotFit"
    preflighted = _say(found)
    if is_refused and mode == "Enforce":
        kind = FailureClass.CONFIG_ERROR if found.wrong else FailureClass.OUT_OF_MEMORY_HBM
        cause = FailureStatus(failure_class=kind, message=preflighted.message, exit_code=found.exit_code, pod=found.pod)
        return Step(terminal_phases.refused(preflighted, cause, status))
    actions = delete_preflight(case.seen) if status.outcome == "Undecided" else ()
    situation = Situation(Phase.PREFLIGHT, {ConditionType.PREFLIGHTED: preflighted}, preflight=status)
    return Step(situation, actions, requeue_after=0.0)


def _say(found: Found) -> Say:
    """The condition: one line, and what to change where it does not fit."""
    status = found.status
    if found.wrong:
        return Say(False, Reason.INVALID_SPEC, found.wrong)
    if status.outcome == "Fits":
        return Say(True, Reason.FITS, status.line)
    if status.outcome == "Undecided":
        return Say(False, Reason.PREFLIGHT_UNDECIDED, f"{status.line}; the job goes on without a verdict")
    return Say(False, Reason.DOES_NOT_FIT, f"{status.line}{_changes(status)}")


def _changes(status: PreflightStatus) -> str:
    fitting = "; ".join(
        f"{each.change} ({each.settings}): {each.peak_gib:.1f} of {each.available_gib:.1f} GiB"
        for each in status.changes
    )
    held = f"; smallest slices that hold it: {', '.join(status.smallest)}" if status.smallest else ""
    return f"; it fits with {fitting}{held}" if fitting else held


def _running(message: str) -> Situation:
    say = Say(False, Reason.PREFLIGHT_RUNNING, f"compiling the job's step for its chips, on a CPU: {message}")
    return Situation(Phase.PREFLIGHT, {ConditionType.PREFLIGHTED: say})


def _waiting_words(seen: Observed) -> str:
    """Why it takes long, where something is in its way."""
    for pod in seen.preflight_pods:
        stuck = pod_failures.start_failure(pod, seen.pull_errors)
        words = stuck.message if stuck is not None else why_unscheduled(pod)
        if words:
            return f"pod {pod['metadata']['name']} waits: {words}"
    return "it runs" if any(map(is_scheduled, seen.preflight_pods)) else "it has no node yet"


def _found(case: Case, job: Manifest) -> Found | None:
    """A verdict; or that there will be none; None while it may come."""
    said = [found for found in map(_told, case.seen.preflight_pods) if found is not None]
    final = next((found for found in said if found.exit_code in _VERDICTS), None)
    if final is not None:
        return final
    why = _why_over(case, job)
    if why is None:
        return None
    provisional = next((found for found in said if found.status.peak_gib is not None), None)
    if provisional is None:
        return _undecided(f"preflight came to no end: {why}")
    status = provisional.status
    return Found(status.model_copy(update={"line": f"{status.line} (the compile came to no end: {why})"}))


def _told(pod: Manifest) -> Found | None:
    """What a pod said when it ended."""
    states = ((each.get("state") or {}).get("terminated") for each in pod["status"].get("containerStatuses") or [])
    state = next((state for state in states if state), None)
    said = pod_failures.termination(state.get("message") or "") if state else None
    if state is None or said is None:
        return None
    code, name = int(state["exitCode"]), str(pod["metadata"]["name"])
    if code == ExitCode.CONFIG_ERROR:
        return Found(PreflightStatus(outcome="Undecided", line=said.message), said.message, name, code)
    return Found(said.preflight, pod=name, exit_code=code) if said.preflight is not None else None


def _why_over(case: Case, job: Manifest) -> str | None:
    """Why no verdict will come; None while one may."""
    seen = case.seen
    failed = true_condition(job, "Failed")
    made = job["metadata"].get("creationTimestamp")
    age = timestamps.seconds_since(str(made), seen.now) if made else None
    is_late = age is not None and (age >= deadline_s(case.layout) + _LATE_S or _cannot_start(case, age))
    if failed is None and not is_late and not holds(job, "Complete"):
        return None
    ends = [found for found in map(pod_failures.pod_failure, seen.preflight_pods) if found is not None]
    if ends:
        return ends[-1].message
    if failed is not None:
        return str(failed.get("message") or failed.get("reason") or "its Job failed")
    return _waiting_words(seen) if is_late else "its pod ended without a word"


def _cannot_start(case: Case, age_s: float) -> bool:
    """Its pod has no node, or not its image, and not since a moment ago."""
    pods = case.seen.preflight_pods
    is_stuck = not any(map(is_scheduled, pods)) or any(pod_failures.start_failure(pod) is not None for pod in pods)
    return is_stuck and age_s >= case.settings.start_failure_seconds


def _undecided(why: str) -> Found:
    return Found(PreflightStatus(outcome="Undecided", line=why))
