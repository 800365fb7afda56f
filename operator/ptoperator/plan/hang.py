"""A run that stands still, seen from outside. Pure.

Every trainer process watches itself, writes its stacks and ends (the trainer's `watchdog`); Python's own C thread does
so where Python cannot. What is left are processes that are stopped or frozen with their host. The leader's progress
document is the run's heartbeat: when it is older than the trainer's own limit and some time for it to act, the pods of
the attempt are deleted, which starts the run again from its checkpoint. Said first, done by the next look. Clocks may
be wrong, so it must have stood still before the operator's eyes for as long; one that was just started waits anew.

Left out: a run whose progress cannot be read. Nobody can tell whether that one stands still.
"""

from __future__ import annotations

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.hang_timeout import limit_s
from ptapi.run_directory import Heartbeat, Progress
from ptkube import timestamps
from ptkube.resources import PODS
from ptoperator.kube.actions import deletion
from ptoperator.observe.state import Observed, is_started
from ptoperator.plan.step import Case, Step
from ptoperator.status import running_phases
from ptoperator.status.builder import Say, Situation

FOR_THE_TRAINER_S = 120.0
"""The trainer's watchdog comes first: it has this long to write stacks and to end."""
BEHIND_S = 60.0
"""A process whose heartbeat is older than the newest one's by more than this is named."""
_NAMED = 4


def hung(case: Case) -> Step | None:
    """No sign of life for too long: say so, then take the pods away."""
    seen = case.seen
    if is_told(seen):
        doomed = tuple(deletion(PODS, pod, seen.namespace) for pod in seen.current_pods if pod in seen.unfinished_pods)
        return Step(Situation(Phase.RESTARTING), doomed, case.settings.progress_seconds)
    silence = silent_s(case)
    if silence is None:
        return None
    progress = seen.progress
    assert progress is not None
    message = (
        f"no sign of life for {timestamps.duration(silence)} after step {progress.step} while {progress.stage}"
        f" (limit {timestamps.duration(_limit_s(case, progress))}){stragglers(seen.heartbeats)}"
        "; the pods are deleted and start again"
    )
    says = {ConditionType.RUNNING: Say(False, Reason.HANG, message)}
    return Step(Situation(Phase.RESTARTING, says), requeue_after=0.0)


def is_told(seen: Observed) -> bool:
    """Whether status says that the current attempt hangs."""
    running = seen.status.condition(ConditionType.RUNNING)
    known = sum(seen.status.restarts.values())
    return running is not None and running.reason == Reason.HANG and known == seen.restarts


def silent_s(case: Case) -> float | None:
    """Seconds since the last sign of life, if they are too many."""
    seen, progress = case.seen, running_phases.own_progress(case.seen)
    if progress is None or progress.stage == "done" or not seen.current_pods:
        return None
    policy, runtime = case.layout.job.spec.run_policy, case.layout.job.spec.runtime
    if runtime.maxtext is not None and policy.hang_timeout_seconds is None:  # its log may be silent for good reasons
        return None
    if not all(map(is_started, seen.current_pods)):
        return None
    age = timestamps.seconds_since(progress.updated, seen.now)
    watched_s = (seen.now - (seen.progress_since or seen.now)).total_seconds()
    limit = _limit_s(case, progress) + FOR_THE_TRAINER_S
    return age if age is not None and min(age, watched_s) > limit else None


def _limit_s(case: Case, progress: Progress) -> float:
    """As the trainer's watchdog has it."""
    return limit_s(progress.stage, progress.seconds_per_step, case.layout.job.spec.run_policy.hang_timeout_seconds)


def stragglers(beats: tuple[Heartbeat, ...]) -> str:
    """`; behind: process 3 on llama-slice-0-3 (step 41, last heard 12m before the others)`. Nothing if none is."""
    times = {beat.process: timestamps.from_text(beat.updated) for beat in beats}
    newest = max(filter(None, times.values()), default=None)
    if newest is None:
        return ""
    furthest = max(beat.step for beat in beats)
    behind = []
    for beat in sorted(beats, key=lambda each: (each.step, each.updated)):
        time = times[beat.process]
        late = (newest - time).total_seconds() if time else 0.0
        if late > BEHIND_S or beat.step < furthest:
            heard = f", last heard {timestamps.duration(late)} before the others" if late > BEHIND_S else ""
            behind.append(f"process {beat.process} on {beat.host} (step {beat.step}{heard})")
    more = f" and {len(behind) - _NAMED} more" if len(behind) > _NAMED else ""
    return f"; behind: {', '.join(behind[:_NAMED])}{more}" if behind else ""
