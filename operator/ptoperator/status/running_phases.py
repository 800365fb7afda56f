"""Status updates of an unfinished job: one function per situation, with its messages. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.failures import REACTIONS, FailureClass
from ptapi.run_directory import Progress, run_uri
from ptapi.spec import KIND
from ptapi.status import CapacityStatus, FailureStatus
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.capacity import open_attempt
from ptoperator.failures import pod_failures
from ptoperator.failures.pod_failures import StartFailure
from ptoperator.kueue import workload
from ptoperator.kueue.workload import KueueState
from ptoperator.observe.elastic_slices import missing_slices, without_missing
from ptoperator.observe.state import Observed, is_scheduled, is_started, started_at, why_unscheduled
from ptoperator.render import Layout
from ptoperator.settings import Settings
from ptoperator.status import terminal_phases
from ptoperator.status.builder import ConditionUpdate, ConditionUpdates, StatusUpdate
from ptoperator.status.restart_counts import restart_counts

_PREPARING = ("loading", "compiling", "restoring")
_SHOWN_NAMES = 3
_CLOCK_SKEW_S = 2.0

VALIDATED, QUOTA, CAPACITY = ConditionType.VALIDATED, ConditionType.QUOTA_RESERVED, ConditionType.CAPACITY_READY
RUNNING, SUSPENDED = ConditionType.RUNNING, ConditionType.SUSPENDED


def with_common_conditions(layout: Layout, settings: Settings, update: StatusUpdate, state: Observed) -> StatusUpdate:
    """Add the conditions of every job whose spec is valid."""
    what = f"{layout.job.spec.label} on {layout.accelerator.describe()}{_file_hint(layout, settings)}"
    conditions: ConditionUpdates = {VALIDATED: ConditionUpdate(True, Reason.ACCEPTED, what)}
    if layout.preflight == "Skip":
        conditions[ConditionType.PREFLIGHTED] = _preflight_skipped(layout, state)
    if not layout.job.spec.queue:
        conditions[QUOTA] = _without_queue(update.capacity or state.status.capacity)
    return replace(update, conditions={**conditions, **update.conditions})


def _preflight_skipped(layout: Layout, state: Observed) -> ConditionUpdate:
    if not layout.job.spec.preflight:
        return ConditionUpdate(False, Reason.PREFLIGHT_SKIPPED, "CPU devices need no preflight")
    condition = state.status.condition(ConditionType.PREFLIGHTED)
    if condition is not None:
        return ConditionUpdate(False, Reason(condition.reason), condition.message)
    why, estimate = "spec.preflight is Skip", state.estimate
    if estimate is None:
        return ConditionUpdate(False, Reason.PREFLIGHT_SKIPPED, why)
    if estimate.fits:
        return ConditionUpdate(False, Reason.PREFLIGHT_SKIPPED, f"{why}; the formula estimates {estimate.message}")
    message = f"the formula estimates {estimate.message}; {why}, so the job continues"
    return ConditionUpdate(False, Reason.DOES_NOT_FIT, message)


def _without_queue(capacity: CapacityStatus) -> ConditionUpdate:
    """Return QuotaReserved of a job without a Kueue queue: its turn at contended chips, if there was one."""
    attempt = open_attempt(capacity)
    if attempt is None or attempt.granted is None:
        return ConditionUpdate(True, Reason.NO_QUEUE, "the job names no queue")
    return ConditionUpdate(True, Reason.ADMITTED, f"its turn for {attempt.option} came at {attempt.granted}")


def suspended(layout: Layout, state: Observed, *, has_chips: bool) -> StatusUpdate:
    """Report a suspended job, whose pods may still be saving and whose node pools may still be released."""
    pods = state.unfinished_pods
    if pods:
        grace = layout.job.spec.run_policy.termination_grace_period_seconds
        message = f"{_named(pods)} saving and stopping, for up to {timestamps.duration(grace)}"
        conditions = {SUSPENDED: ConditionUpdate(False, Reason.SUSPENDING, message)}
        phase = state.status.phase if state.status.phase is not Phase.PENDING else Phase.SUSPENDED
        return StatusUpdate(phase, conditions)
    chips = "its chips are being released" if has_chips else "no chips"
    message = f"runPolicy.suspend is true; no pods, {chips}{_checkpoint_message(state)}"
    return StatusUpdate(
        Phase.SUSPENDED,
        {
            SUSPENDED: ConditionUpdate(True, Reason.SUSPENDED, message),
            RUNNING: ConditionUpdate(False, Reason.SUSPENDED, message),
            CAPACITY: ConditionUpdate(False, Reason.SUSPENDED, message),
        },
    )


def cleaning_up(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that earlier objects are still being deleted."""
    what = _named(state.unfinished_pods) if state.unfinished_pods else f"JobSet {layout.jobset}"
    return _before_jobset(state, Reason.CLEANING_UP, f"waiting for the previous {what} to be deleted")


def name_taken(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that another owner's JobSet has the name."""
    message = f"JobSet {layout.jobset} exists and belongs to another owner; hint: delete that JobSet, or rename the job"
    return _before_jobset(state, Reason.CREATE_FAILED, message)


def create_refused(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that the API server rejects an object."""
    return _before_jobset(state, Reason.CREATE_FAILED, f"the API server rejects a request: {state.rejection}")


def restarting(state: Observed, cause: FailureStatus | None, pause_s: float) -> StatusUpdate:
    """Report a restart for a failure of the machine, not of the job. cause: not counted yet."""
    why = cause or state.status.failure
    message = f"after {terminal_phases.describe_failure(why)}; " if why else ""
    what = "an outage" if why is not None and why.failure_class == FailureClass.NETWORK else "a repair"
    wait = f"restarts in {timestamps.duration(pause_s)}, because {what} takes minutes" if pause_s else "restarts"
    is_free = why is not None and not REACTIONS[FailureClass(why.failure_class)].charged
    free = "not charged to runPolicy.maxRestarts; " if is_free else ""
    message = f"{message}{free}{wait}{_checkpoint_message(state)}"
    return StatusUpdate(
        Phase.RESTARTING, {RUNNING: ConditionUpdate(False, Reason.RESTARTING, message)}, restarted=cause
    )


def waiting_for_capacity(state: Observed, message: str, capacity: CapacityStatus) -> StatusUpdate:
    """Report that node pools are being created, or tried elsewhere."""
    conditions = {CAPACITY: ConditionUpdate(False, Reason.WAITING_FOR_CAPACITY, message), **_resumed(state)}
    if state.status.condition(RUNNING):
        conditions[RUNNING] = ConditionUpdate(False, Reason.WAITING_FOR_CAPACITY, message)
    return StatusUpdate(Phase.PROVISIONING, conditions, capacity=capacity)


def waiting_for_quota(state: Observed, message: str, capacity: CapacityStatus) -> StatusUpdate:
    """Report a job without quota that will ask for it again."""
    waiting = waiting_for_capacity(state, message, capacity)
    return replace(
        waiting, conditions={**waiting.conditions, QUOTA: ConditionUpdate(False, Reason.WAITING_FOR_QUOTA, message)}
    )


def waiting_in_queue(state: Observed, message: str, capacity: CapacityStatus) -> StatusUpdate:
    """Report a job that waits for its turn at contended chips."""
    return replace(waiting_for_quota(state, message, capacity), phase=Phase.QUEUED)


def jobset_created(layout: Layout, state: Observed) -> StatusUpdate:
    """Report a new JobSet whose pods are not observed yet."""
    if layout.job.spec.queue:
        return replace(queued(layout, state), has_jobset=True)
    message = f"JobSet {layout.jobset} is created; waiting for its pods"
    conditions = {CAPACITY: ConditionUpdate(False, Reason.WAITING_FOR_NODES, message), **_resumed(state)}
    return StatusUpdate(_before_pods(state), conditions, has_jobset=True)


def jobset_active(layout: Layout, state: Observed, silent_start_s: float) -> StatusUpdate:
    """Report a JobSet that is queued, waits for nodes, starts or runs."""
    if state.is_jobset_suspended and state.jobset_queue:
        return queued(layout, state)
    conditions = {**_resumed(state), **_admitted(state)}
    missing = missing_slices(layout, state)
    state = without_missing(layout, state)
    pods, wanted = state.current_pods, layout.pods - missing * layout.hosts
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
        conditions[RUNNING] = ConditionUpdate(True, Reason.TRAINING, _training_message(layout, state))
        return StatusUpdate(Phase.RUNNING, conditions)
    conditions[RUNNING] = _not_running(state, _starting_message(layout, state))
    return StatusUpdate(Phase.RESTARTING if state.jobset_restarts else Phase.STARTING, conditions)


def start_failures(state: Observed) -> Iterator[StartFailure]:
    """Return why pods are not created, and the containers that cannot start."""
    if state.creation_failure is not None:
        yield state.creation_failure
    failures = (pod_failures.start_failure(pod, state.pull_errors) for pod in state.current_pods)
    yield from (failure for failure in failures if failure is not None)


def is_of_earlier(state: Observed) -> bool:
    """Return True if the JobSet belongs to an earlier job of this name that is being garbage-collected."""
    owners = state.jobset["metadata"].get("ownerReferences") or [] if state.jobset else []
    return any(owner.get("kind") == KIND and owner.get("name") == state.job.name for owner in owners)


def queued(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that Kueue has reserved no quota, or revoked it."""
    before = state.status.condition(QUOTA)
    was_admitted = before is not None and before.reason in (Reason.ADMITTED, Reason.EVICTED)
    kueue = state.kueue or KueueState(str(state.jobset_queue or layout.job.spec.queue))
    if was_admitted:
        condition = ConditionUpdate(False, Reason.EVICTED, workload.eviction_message(kueue, layout.accelerator))
    else:
        condition = ConditionUpdate(
            False, Reason.WAITING_FOR_QUOTA, workload.waiting_message(kueue, layout.accelerator)
        )
    conditions = {
        QUOTA: condition,
        CAPACITY: ConditionUpdate(False, condition.reason, condition.message),
        RUNNING: ConditionUpdate(False, condition.reason, condition.message),
    }
    return StatusUpdate(Phase.QUEUED, {**conditions, **_resumed(state)})


def _admitted(state: Observed) -> ConditionUpdates:
    return (
        {QUOTA: ConditionUpdate(True, Reason.ADMITTED, f"admitted by queue {state.jobset_queue}")}
        if state.jobset_queue
        else {}
    )


def _resumed(state: Observed) -> ConditionUpdates:
    """Report the resumption of a job that was suspended before."""
    if state.status.condition(SUSPENDED) is None:
        return {}
    return {SUSPENDED: ConditionUpdate(False, Reason.RESUMED, "runPolicy.suspend is false again")}


def _before_pods(state: Observed) -> Phase:
    return Phase.RESTARTING if state.jobset_restarts else Phase.PROVISIONING


def _before_jobset(state: Observed, reason: Reason, message: str) -> StatusUpdate:
    conditions = {CAPACITY: ConditionUpdate(False, reason, message)}
    if state.status.condition(RUNNING):
        conditions[RUNNING] = ConditionUpdate(False, reason, message)
    return StatusUpdate(Phase.PENDING if state.status.phase is Phase.PENDING else Phase.PROVISIONING, conditions)


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
    is_unheard = state.progress is None
    return is_unheard and all(age is not None and age >= silent_start_s for age in ages)


def own_progress(state: Observed) -> Progress | None:
    """Return the progress document if the current pods wrote it, else None."""
    progress = state.progress
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
    if state.progress is None:
        run = run_uri(layout.job.spec.output.uri, layout.name)
        return f"the trainer runs, but its progress cannot be read from {run}"
    return f"attempt {state.restarts + 1} is training"


def _starting_message(layout: Layout, state: Observed) -> str:
    failing = next(start_failures(state), None)
    if failing is not None:
        return f"pod {failing.pod} cannot start: {failing.message}"
    starting = [pod for pod in state.current_pods if not is_started(pod)]
    if starting:
        return f"{_named(starting)} starting"
    progress = own_progress(state)
    return f"the trainer is {progress.stage}" if progress else "the trainer is starting"


def _not_running(state: Observed, now: str) -> ConditionUpdate:
    """Say what the job does now, and after a restart also why."""
    if not state.jobset_restarts:
        return ConditionUpdate(False, Reason.PODS_STARTING, now)
    _, newest = restart_counts(state)
    cause = newest or state.status.failure
    why = f" after {terminal_phases.describe_failure(cause)}" if cause else ""
    return ConditionUpdate(
        False, Reason.RESTARTING, f"restart {state.restarts}{why}; {now}{_checkpoint_message(state)}"
    )


def _checkpoint_message(state: Observed) -> str:
    checkpoint = state.progress.checkpoint if state.progress else state.status.checkpoint
    return f"; continues from step {checkpoint.step}" if checkpoint else ""


def _unscheduled_message(pods: tuple[Manifest, ...], waiting: list[Manifest], wanted: int) -> str:
    message = f"{len(pods) - len(waiting)} of {wanted} pods have nodes"
    why = next(filter(None, map(why_unscheduled, waiting)), "")
    return f"{message}; {_named(waiting[:1])} waits: {why}" if why else message


def _named(pods: list[Manifest] | tuple[Manifest, ...]) -> str:
    """Return `pod a` or `pods a, b, c and 5 more`."""
    names = sorted(str(pod["metadata"]["name"]) for pod in pods)
    shown, rest = names[:_SHOWN_NAMES], len(names) - _SHOWN_NAMES
    more = f" and {rest} more" if rest > 0 else ""
    return f"pod{'s' if len(names) > 1 else ''} {', '.join(shown)}{more}"


def _file_hint(layout: Layout, settings: Settings) -> str:
    """Warn about a `file://` run directory that no volume covers: it vanishes with its pod."""
    uri = layout.job.spec.output.uri
    path = uri.removeprefix("file://")
    covered = any(
        path == v.mount_path or path.startswith(v.mount_path.rstrip("/") + "/") for v in layout.job.spec.volumes
    )
    if settings.shared_filesystem or not uri.startswith("file://") or covered:
        return ""
    return f"; hint: output.uri {uri} is inside the pod and lost with it; mount a volume that covers it (spec.volumes)"
