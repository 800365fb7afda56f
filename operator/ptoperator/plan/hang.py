"""Detect a run that stands still, from outside. Pure.

Every trainer process watches itself, writes its stacks and exits (the trainer's `watchdog`); Python's own C thread does
so if Python cannot. What is left are processes that are stopped or frozen with their host. The leader's progress
document is the run's heartbeat: when it is older than the trainer's own limit plus a grace period, the attempt's pods
are deleted, which restarts the run from its checkpoint. This is written to status first and done by the next reconcile.
Because clocks may be wrong, this operator must have seen the run stand still for as long; one that just started waits
anew.

Left out: a run whose progress cannot be read. Nobody can tell whether that one stands still.
"""

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.hang_timeout import limit_s
from ptapi.run_directory import Heartbeat, Progress
from ptkube import timestamps
from ptkube.resources import PODS
from ptoperator.kube.actions import deletion
from ptoperator.observe import elastic_slices
from ptoperator.observe.state import Observed, is_started
from ptoperator.plan.step_result import PlanContext, StepResult
from ptoperator.status import running_phases
from ptoperator.status.builder import ConditionUpdate, StatusUpdate

WATCHDOG_GRACE_S = 120.0
"""The trainer's watchdog comes first: it has this long to write stacks and to end."""
STRAGGLER_S = 60.0
"""A process whose heartbeat is older than the newest one's by more than this is named."""
_MAX_NAMED = 4


def hang_detected(context: PlanContext) -> StepResult | None:
    """Report a hang, then delete the pods."""
    state = context.state
    if context.layout.is_supervised:  # a host that is frozen falls silent to the others, and they restart the trainer
        return None
    if is_reported(state):
        deletions = tuple(
            deletion(PODS, pod, state.job.namespace) for pod in state.trainer_pods if pod in state.unfinished_pods
        )
        return StepResult(StatusUpdate(Phase.RESTARTING), deletions, context.settings.progress_seconds)
    silence = silence_s(context)
    if silence is None:
        return None
    progress = state.run.progress
    assert progress is not None
    away = elastic_slices.away(context.layout, state)
    behind = stragglers(state.run.heartbeats) + (f"; {away}" if away else "")
    message = (
        f"no heartbeat for {timestamps.duration(silence)} after step {progress.step} while {progress.stage}"
        f" (limit {timestamps.duration(_limit_s(context, progress))}){behind}"
        "; the pods are deleted and the run restarts"
    )
    conditions = {ConditionType.RUNNING: ConditionUpdate(False, Reason.HANG, message)}
    return StepResult(StatusUpdate(Phase.RESTARTING, conditions), requeue_after=0.0)


def is_reported(state: Observed) -> bool:
    """Return True if status says that the current attempt hangs."""
    running = state.status.condition(ConditionType.RUNNING)
    recorded_restarts = sum(state.status.pod_restarts.values())
    return running is not None and running.reason == Reason.HANG and recorded_restarts == state.restarts


def silence_s(context: PlanContext) -> float | None:
    """Return the seconds since the last heartbeat, if they exceed the limit."""
    state, progress = context.state, running_phases.own_progress(context.state)
    if progress is None or progress.stage == "done" or not state.trainer_pods:
        return None
    policy, runtime = context.layout.job.spec.run_policy, context.layout.job.spec.runtime
    if runtime.maxtext is not None and policy.hang_timeout_seconds is None:  # its log may be silent for good reasons
        return None
    if not all(map(is_started, state.trainer_pods)):
        return None
    age = timestamps.seconds_since(progress.updated, state.now)
    watched_s = (state.now - (state.run.progress_since or state.now)).total_seconds()
    limit = _limit_s(context, progress) + WATCHDOG_GRACE_S
    return age if age is not None and min(age, watched_s) > limit else None


def _limit_s(context: PlanContext, progress: Progress) -> float:
    """Return the limit of the trainer's watchdog."""
    return limit_s(progress.stage, progress.seconds_per_step, context.layout.job.spec.run_policy.hang_timeout_seconds)


def stragglers(heartbeats: tuple[Heartbeat, ...]) -> str:
    """Return `; behind: process 3 on llama-slice-0-3 (step 41, last heartbeat 12m before the others)`, or nothing."""
    times = {heartbeat.process: timestamps.from_text(heartbeat.updated) for heartbeat in heartbeats}
    newest = max(filter(None, times.values()), default=None)
    if newest is None:
        return ""
    latest_step = max(heartbeat.step for heartbeat in heartbeats)
    behind = []
    for heartbeat in sorted(heartbeats, key=lambda each: (each.step, each.updated)):
        time = times[heartbeat.process]
        late = (newest - time).total_seconds() if time else 0.0
        if late > STRAGGLER_S or heartbeat.step < latest_step:
            last = f", last heartbeat {timestamps.duration(late)} before the others" if late > STRAGGLER_S else ""
            behind.append(f"process {heartbeat.process} on {heartbeat.host} (step {heartbeat.step}{last})")
    more = f" and {len(behind) - _MAX_NAMED} more" if len(behind) > _MAX_NAMED else ""
    return f"; behind: {', '.join(behind[:_MAX_NAMED])}{more}" if behind else ""
