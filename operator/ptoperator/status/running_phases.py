"""Status updates of a job that has its JobSet: its pods get nodes, start and train. Pure."""

from dataclasses import replace

from ptapi.conditions import Phase, Reason
from ptapi.run_directory import Progress, run_uri
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.observe import elastic_slices
from ptoperator.observe.elastic_slices import (
    missing_slices,
    needed_pods,
    slices_at_work,
    without_missing,
)
from ptoperator.observe.state import Observed, is_scheduled, is_started, started_at, why_unscheduled
from ptoperator.render import Layout
from ptoperator.status import terminal_phases
from ptoperator.status.builder import ConditionUpdate, ConditionUpdates, StatusUpdate
from ptoperator.status.restart_counts import restart_counts
from ptoperator.status.waiting_phases import CAPACITY, QUOTA, RUNNING, checkpoint_message, named, queued, resumed

_PREPARING = ("loading", "compiling", "restoring")
_CLOCK_SKEW_S = 2.0


def jobset_created(layout: Layout, state: Observed) -> StatusUpdate:
    """Report a new JobSet whose pods are not observed yet."""
    if layout.job.spec.queue:
        return replace(queued(layout, state), has_jobset=True)
    message = f"JobSet {layout.jobset} is created; waiting for its pods"
    conditions = {CAPACITY: ConditionUpdate(False, Reason.WAITING_FOR_NODES, message), **resumed(state)}
    return StatusUpdate(_before_pods(state), conditions, has_jobset=True)


def jobset_active(layout: Layout, state: Observed, silent_start_s: float) -> StatusUpdate:
    """Report a JobSet that is queued, waits for nodes, starts or runs."""
    if state.is_jobset_suspended and state.jobset_queue:
        return queued(layout, state)
    conditions = {**resumed(state), **_admitted(state)}
    missing, wanted, away = (
        missing_slices(layout, state),
        needed_pods(layout, state),
        elastic_slices.away(layout, state),
    )
    state = without_missing(layout, state)
    pods = state.current_pods
    waiting = [pod for pod in pods if not is_scheduled(pod)]
    if len(pods) < wanted or waiting:
        refused, message = state.creation_failure, _unscheduled_message(pods, waiting, wanted)
        conditions[CAPACITY] = (
            ConditionUpdate(False, Reason.CREATE_FAILED, f"{message}; {refused.message}")
            if refused
            else ConditionUpdate(False, Reason.WAITING_FOR_NODES, message)
        )
        conditions[RUNNING] = _not_running(state, "no pods yet" if not pods else "pods wait for nodes")
        return StatusUpdate(_before_pods(state), conditions)
    without = f"; the run continues without {missing} of {layout.slices} slices" if missing else ""
    conditions[CAPACITY] = ConditionUpdate(
        True, Reason.NODES_READY, f"{wanted} of {layout.pods} pods have nodes{without}"
    )
    if _is_training(layout, state, silent_start_s):
        conditions[RUNNING] = ConditionUpdate(
            True, Reason.TRAINING, _training_message(layout, state) + (f"; {away}" if away else "")
        )
        return StatusUpdate(Phase.RUNNING, conditions)
    conditions[RUNNING] = _not_running(state, _starting_message(layout, state))
    slices = elastic_slices.status(state)
    is_again = bool(state.jobset_restarts) or (slices is not None and bool(slices.restarts))
    return StatusUpdate(Phase.RESTARTING if is_again else Phase.STARTING, conditions)


def _admitted(state: Observed) -> ConditionUpdates:
    return (
        {QUOTA: ConditionUpdate(True, Reason.ADMITTED, f"admitted by queue {state.jobset_queue}")}
        if state.jobset_queue
        else {}
    )


def _before_pods(state: Observed) -> Phase:
    return Phase.RESTARTING if state.jobset_restarts else Phase.PROVISIONING


def _is_training(layout: Layout, state: Observed, silent_start_s: float) -> bool:
    """Return True if this attempt reports steps, or has run long enough without readable progress."""
    if not all(map(is_started, state.current_pods)):
        return False
    if layout.is_headless:
        return True
    progress = own_progress(state)
    if progress is not None:
        # A shape of batch that comes up later is compiled in the midst of steps: the run does not begin again.
        is_later = progress.stage == "compiling" and state.status.phase is Phase.RUNNING
        return is_later or progress.stage not in _PREPARING
    ages = [timestamps.seconds_since(started_at(pod), state.now) for pod in state.current_pods]
    is_unheard = state.run.progress is None
    return is_unheard and all(age is not None and age >= silent_start_s for age in ages)


def own_progress(state: Observed) -> Progress | None:
    """Return the progress document if the current pods wrote it, else None."""
    progress = state.run.progress
    if progress is None or progress.job_uid not in ("", state.job.uid):
        return None
    updated = timestamps.from_text(progress.updated)
    starts = [start for start in map(timestamps.from_text, map(started_at, state.current_pods)) if start]
    if updated is None or not starts or (updated - min(starts)).total_seconds() < -_CLOCK_SKEW_S:
        return None
    return progress


def _training_message(layout: Layout, state: Observed) -> str:
    if layout.is_headless:
        return f"Pathways' servers run; connect with: ptctl workload connect {layout.name} -n {layout.namespace}"
    if state.run.progress is None:
        run = run_uri(layout.job.spec.output.uri, layout.name)
        return f"the trainer runs, but its progress cannot be read from {run}"
    if layout.is_supervised:
        return f"the trainer is training{slices_at_work(state)}"
    return f"attempt {state.restarts + 1} is training"


def _starting_message(layout: Layout, state: Observed) -> str:
    failing = next(state.start_failures(), None)
    if failing is not None:
        return f"pod {failing.pod} cannot start: {failing.message}"
    starting = [pod for pod in state.current_pods if not is_started(pod)]
    if starting:
        return f"{named(starting)} starting"
    progress = own_progress(state)
    return f"the trainer is {progress.stage}" if progress else "the trainer is starting"


def _not_running(state: Observed, now: str) -> ConditionUpdate:
    """Say what the job does now, and after a restart also why."""
    if not state.jobset_restarts:
        return ConditionUpdate(False, Reason.PODS_STARTING, now)
    _, newest = restart_counts(state)
    cause = newest or state.status.failure
    why = f" after {terminal_phases.describe_failure(cause)}" if cause else ""
    return ConditionUpdate(False, Reason.RESTARTING, f"restart {state.restarts}{why}; {now}{checkpoint_message(state)}")


def _unscheduled_message(pods: tuple[Manifest, ...], waiting: list[Manifest], wanted: int) -> str:
    message = f"{len(pods) - len(waiting)} of {wanted} pods have nodes"
    why = next(filter(None, map(why_unscheduled, waiting)), "")
    return f"{message}; {named(waiting[:1])} waits: {why}" if why else message
