"""Where a living job stands: one function per situation, with the words for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.failures import REACTIONS, FailureClass
from ptapi.run_directory import Progress, run_uri
from ptapi.spec import KIND
from ptapi.status import CapacityStatus, FailureStatus
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.capacity import is_open
from ptoperator.failures import pod_failures
from ptoperator.failures.pod_failures import StartFailure
from ptoperator.kueue import workload
from ptoperator.kueue.workload import Place
from ptoperator.observe.elastic_slices import missing_slices, without_missing
from ptoperator.observe.state import Observed, is_scheduled, is_started, started_at, why_unscheduled
from ptoperator.render import Layout
from ptoperator.settings import Settings
from ptoperator.status import terminal_phases
from ptoperator.status.builder import Say, Says, Situation
from ptoperator.status.restart_counts import restart_counts

_PREPARING = ("loading", "compiling", "restoring")
_SHOWN_NAMES = 3
_CLOCK_SKEW_S = 2.0

VALIDATED, QUOTA, CAPACITY = ConditionType.VALIDATED, ConditionType.QUOTA_RESERVED, ConditionType.CAPACITY_READY
RUNNING, SUSPENDED = ConditionType.RUNNING, ConditionType.SUSPENDED


def accepted(layout: Layout, settings: Settings, situation: Situation, seen: Observed) -> Situation:
    """The situation with what holds for every job whose spec is valid."""
    what = f"{layout.job.spec.algorithm.label} on {layout.accelerator.describe()}{_file_hint(layout, settings)}"
    says: Says = {VALIDATED: Say(True, Reason.ACCEPTED, what)}
    if layout.preflight == "Skip":
        says[ConditionType.PREFLIGHTED] = _skipped(layout, seen)
    if not layout.job.spec.queue:
        says[QUOTA] = _turn(situation.capacity or seen.status.capacity)
    return replace(situation, says={**says, **situation.says})


def _skipped(layout: Layout, seen: Observed) -> Say:
    if not layout.job.spec.preflight:
        return Say(False, Reason.PREFLIGHT_SKIPPED, "CPU devices need none")
    said = seen.status.condition(ConditionType.PREFLIGHTED)
    if said is not None:
        return Say(False, Reason(said.reason), said.message)
    why, found = "spec.preflight is Skip", seen.estimate
    if found is None:
        return Say(False, Reason.PREFLIGHT_SKIPPED, why)
    if found.fits:
        return Say(False, Reason.PREFLIGHT_SKIPPED, f"{why}; by the formula {found.words}")
    return Say(False, Reason.DOES_NOT_FIT, f"by the formula {found.words}; {why}, so the job goes on")


def _turn(capacity: CapacityStatus) -> Say:
    """Of a job without a queue: its turn at chips that others want too, where there was one."""
    attempt = is_open(capacity)
    if attempt is None or attempt.granted is None:
        return Say(True, Reason.NO_QUEUE, "the job names no queue")
    return Say(True, Reason.ADMITTED, f"its turn at {attempt.option} came at {attempt.granted}")


def suspended(layout: Layout, seen: Observed, *, has_chips: bool) -> Situation:
    """Asked to hold still: pods may still be saving, and node pools be on their way out."""
    pods = seen.unfinished_pods
    if pods:
        grace = layout.job.spec.run_policy.termination_grace_period_seconds
        message = f"{_named(pods)} saving and stopping, for up to {timestamps.duration(grace)}"
        says = {SUSPENDED: Say(False, Reason.SUSPENDING, message)}
        phase = seen.status.phase if seen.status.phase is not Phase.PENDING else Phase.SUSPENDED
        return Situation(phase, says)
    chips = "its chips are being given back" if has_chips else "no chips"
    message = f"runPolicy.suspend is true; no pods, {chips}{_checkpoint_words(seen)}"
    return Situation(
        Phase.SUSPENDED,
        {
            SUSPENDED: Say(True, Reason.SUSPENDED, message),
            RUNNING: Say(False, Reason.SUSPENDED, message),
            CAPACITY: Say(False, Reason.SUSPENDED, message),
        },
    )


def cleaning_up(layout: Layout, seen: Observed) -> Situation:
    what = _named(seen.unfinished_pods) if seen.unfinished_pods else f"JobSet {layout.jobset}"
    return _waiting(seen, Reason.CLEANING_UP, f"waiting for {what} of before to go away")


def name_taken(layout: Layout, seen: Observed) -> Situation:
    message = f"JobSet {layout.jobset} exists and is not this job's; hint: delete that JobSet, or rename the job"
    return _waiting(seen, Reason.CREATE_FAILED, message)


def refused(layout: Layout, seen: Observed) -> Situation:
    return _waiting(seen, Reason.CREATE_FAILED, f"the API server refuses: {seen.obstacle}")


def repairing(seen: Observed, cause: FailureStatus | None, pause_s: float) -> Situation:
    """The machine failed, not the job: it is started again when the machine can be back. cause: not counted yet."""
    why = cause or seen.status.failure
    words = f"after {terminal_phases.words(why)}; " if why else ""
    wait = f"starts again in {timestamps.duration(pause_s)}, for a repair takes minutes" if pause_s else "starts again"
    is_free = why is not None and not REACTIONS[FailureClass(why.failure_class)].charged
    free = "not charged to runPolicy.maxRestarts; " if is_free else ""
    message = f"{words}{free}{wait}{_checkpoint_words(seen)}"
    return Situation(Phase.RESTARTING, {RUNNING: Say(False, Reason.RESTARTING, message)}, restarted=cause)


def waiting_for_capacity(seen: Observed, message: str, capacity: CapacityStatus) -> Situation:
    """Node pools come, or are tried again elsewhere."""
    says = {CAPACITY: Say(False, Reason.WAITING_FOR_CAPACITY, message), **_resumed(seen)}
    if seen.status.condition(RUNNING):
        says[RUNNING] = Say(False, Reason.WAITING_FOR_CAPACITY, message)
    return Situation(Phase.PROVISIONING, says, capacity=capacity)


def out_of_line(seen: Observed, message: str, capacity: CapacityStatus) -> Situation:
    """Without quota, of which it wants some again later."""
    waiting = waiting_for_capacity(seen, message, capacity)
    return replace(waiting, says={**waiting.says, QUOTA: Say(False, Reason.WAITING_FOR_QUOTA, message)})


def in_line(seen: Observed, message: str, capacity: CapacityStatus) -> Situation:
    """Other jobs want the same chips, and it is not this one's turn."""
    return replace(out_of_line(seen, message, capacity), phase=Phase.QUEUED)


def created(layout: Layout, seen: Observed) -> Situation:
    """Just made; nothing is known of pods yet."""
    if layout.job.spec.queue:
        return queued(layout, seen)
    says = {CAPACITY: Say(False, Reason.WAITING_FOR_NODES, f"JobSet {layout.jobset} is made, its pods come next")}
    return Situation(_before_pods(seen), {**says, **_resumed(seen)})


def following(layout: Layout, seen: Observed, silent_start_s: float) -> Situation:
    """The JobSet lives: queued, waiting for nodes, starting or running."""
    if seen.is_jobset_suspended and seen.jobset_queue:
        return queued(layout, seen)
    says = {**_resumed(seen), **_admitted(seen)}
    missing = missing_slices(layout, seen)
    seen = without_missing(layout, seen)
    pods, wanted = seen.current_pods, layout.pods - missing * layout.hosts
    waiting = [pod for pod in pods if not is_scheduled(pod)]
    if len(pods) < wanted or waiting:
        says[CAPACITY] = Say(False, Reason.WAITING_FOR_NODES, _unscheduled_words(pods, waiting, wanted))
        says[RUNNING] = _not_running(seen, "no pods yet" if not pods else "pods wait for nodes")
        return Situation(_before_pods(seen), says)
    without = f"; the run goes on without {missing} of {layout.slices} slices" if missing else ""
    says[CAPACITY] = Say(True, Reason.NODES_READY, f"{wanted} of {layout.pods} pods have nodes{without}")
    if _is_training(layout, seen, silent_start_s):
        says[RUNNING] = Say(True, Reason.TRAINING, _training_words(layout, seen))
        return Situation(Phase.RUNNING, says)
    says[RUNNING] = _not_running(seen, _starting_words(layout, seen))
    return Situation(Phase.RESTARTING if seen.jobset_restarts else Phase.STARTING, says)


def start_failures(seen: Observed) -> Iterator[StartFailure]:
    """Containers that cannot be started."""
    found = (pod_failures.start_failure(pod, seen.pull_errors) for pod in seen.current_pods)
    return (each for each in found if each is not None)


def is_of_earlier(seen: Observed) -> bool:
    """Whether the JobSet belongs to an earlier job of this name, whose objects are being collected."""
    owners = seen.jobset["metadata"].get("ownerReferences") or [] if seen.jobset else []
    return any(owner.get("kind") == KIND and owner.get("name") == seen.name for owner in owners)


def queued(layout: Layout, seen: Observed) -> Situation:
    """Kueue has reserved no quota, or took it back."""
    was_admitted = (found := seen.status.condition(QUOTA)) and found.reason in (Reason.ADMITTED, Reason.EVICTED)
    place = seen.place or Place(str(seen.jobset_queue or layout.job.spec.queue))
    if was_admitted:
        say = Say(False, Reason.EVICTED, workload.evicted_words(place, layout.accelerator))
    else:
        say = Say(False, Reason.WAITING_FOR_QUOTA, workload.waiting_words(place, layout.accelerator))
    says = {QUOTA: say, CAPACITY: Say(False, say.reason, say.message), RUNNING: Say(False, say.reason, say.message)}
    return Situation(Phase.QUEUED, {**says, **_resumed(seen)})


def _admitted(seen: Observed) -> Says:
    return {QUOTA: Say(True, Reason.ADMITTED, f"admitted by queue {seen.jobset_queue}")} if seen.jobset_queue else {}


def _resumed(seen: Observed) -> Says:
    """Only for a job that was suspended before."""
    if seen.status.condition(SUSPENDED) is None:
        return {}
    return {SUSPENDED: Say(False, Reason.RESUMED, "runPolicy.suspend is false again")}


def _before_pods(seen: Observed) -> Phase:
    return Phase.RESTARTING if seen.jobset_restarts else Phase.PROVISIONING


def _waiting(seen: Observed, reason: Reason, message: str) -> Situation:
    says = {CAPACITY: Say(False, reason, message)}
    if seen.status.condition(RUNNING):
        says[RUNNING] = Say(False, reason, message)
    return Situation(Phase.PENDING if seen.status.phase is Phase.PENDING else Phase.PROVISIONING, says)


def _is_training(layout: Layout, seen: Observed, silent_start_s: float) -> bool:
    """Whether this attempt takes steps: it says so, or it has run long enough and cannot be heard."""
    if not all(map(is_started, seen.current_pods)):
        return False
    if layout.is_headless:
        return True
    progress = own_progress(seen)
    if progress is not None:
        # A shape of batch that comes up later is compiled in the midst of steps: the run does not begin again.
        is_later = progress.stage == "compiling" and seen.status.phase is Phase.RUNNING
        return is_later or progress.stage not in _PREPARING
    ages = [timestamps.seconds_since(started_at(pod), seen.now) for pod in seen.current_pods]
    is_unheard = seen.progress is None
    return is_unheard and all(age is not None and age >= silent_start_s for age in ages)


def own_progress(seen: Observed) -> Progress | None:
    """The progress document, if the current pods wrote it."""
    progress = seen.progress
    if progress is None or progress.job_uid not in ("", seen.uid):
        return None
    updated = timestamps.from_text(progress.updated)
    starts = [start for start in map(timestamps.from_text, map(started_at, seen.current_pods)) if start]
    if updated is None or not starts or (updated - min(starts)).total_seconds() < -_CLOCK_SKEW_S:
        return None
    return progress


def _training_words(layout: Layout, seen: Observed) -> str:
    if layout.is_headless:
        return f"Pathways' servers run; to reach them: ptctl workload connect {layout.name} -n {layout.namespace}"
    if seen.progress is None:
        run = run_uri(layout.job.spec.output.uri, layout.name)
        return f"the trainer runs; its progress cannot be read in {run}"
    return f"attempt {seen.restarts + 1} is training"


def _starting_words(layout: Layout, seen: Observed) -> str:
    failing = next(start_failures(seen), None)
    if failing is not None:
        return f"pod {failing.pod} cannot start: {failing.message}"
    starting = [pod for pod in seen.current_pods if not is_started(pod)]
    if starting:
        return f"{_named(starting)} starting"
    progress = own_progress(seen)
    return f"the trainer is {progress.stage}" if progress else "the trainer is starting"


def _not_running(seen: Observed, now: str) -> Say:
    """After a restart it also says why."""
    if not seen.jobset_restarts:
        return Say(False, Reason.PODS_STARTING, now)
    _, newest = restart_counts(seen)
    cause = newest or seen.status.failure
    why = f" after {terminal_phases.words(cause)}" if cause else ""
    return Say(False, Reason.RESTARTING, f"restart {seen.restarts}{why}; {now}{_checkpoint_words(seen)}")


def _checkpoint_words(seen: Observed) -> str:
    checkpoint = seen.progress.checkpoint if seen.progress else seen.status.checkpoint
    return f"; continues from step {checkpoint.step}" if checkpoint else ""


def _unscheduled_words(pods: tuple[Manifest, ...], waiting: list[Manifest], wanted: int) -> str:
    words = f"{len(pods) - len(waiting)} of {wanted} pods have nodes"
    why = next(filter(None, map(why_unscheduled, waiting)), "")
    return f"{words}; {_named(waiting[:1])} waits: {why}" if why else words


def _named(pods: list[Manifest] | tuple[Manifest, ...]) -> str:
    """`pod a`, `pods a, b, c and 5 more`."""
    names = sorted(str(pod["metadata"]["name"]) for pod in pods)
    shown, rest = names[:_SHOWN_NAMES], len(names) - _SHOWN_NAMES
    more = f" and {rest} more" if rest > 0 else ""
    return f"pod{'s' if len(names) > 1 else ''} {', '.join(shown)}{more}"


def _file_hint(layout: Layout, settings: Settings) -> str:
    """A `file://` run directory that no volume covers would vanish with its pod."""
    uri = layout.job.spec.output.uri
    path = uri.removeprefix("file://")
    covered = any(
        path == v.mount_path or path.startswith(v.mount_path.rstrip("/") + "/") for v in layout.job.spec.volumes
    )
    if settings.shared_filesystem or not uri.startswith("file://") or covered:
        return ""
    return f"; hint: output.uri {uri} is inside the pod and ends with it: mount a volume that covers it (spec.volumes)"
