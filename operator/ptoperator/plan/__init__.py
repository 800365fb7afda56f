"""Decide what to do about one job: from the observed state to actions, status and the time of the next reconcile.

`plan` is pure: a sequence of guarded steps, of which the first that applies answers. It is level-triggered: it needs no
memory of what it did before, and a crash between any two of its effects leaves a state from which the same steps
continue.

The reconciler keeps the order of effects: actions, then events, then status. A decision to end a job, or an attempt at
its capacity, is written to status first and carried out by the next reconcile: otherwise a crash in between would start
it again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.errors import SpecError
from ptapi.status import CapacityStatus, FailureStatus, PostTrainJobStatus
from ptkube import timestamps
from ptkube.resources import CONFIGMAPS, JOBSETS, POSTTRAINJOBS
from ptoperator.capacity import Decision, open_attempt, provide
from ptoperator.capacity.attempts import mark_ready, record_pools
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube.actions import Action, Create, Delete, Patch
from ptoperator.observe.state import USUAL_CREATION_S, Observed, is_started
from ptoperator.plan.capacity_steps import capacity_pending, nodes_missing, stale_jobset
from ptoperator.plan.hang import hang_detected
from ptoperator.plan.preflight import delete_preflight, preflight_pending
from ptoperator.plan.quota import (
    admission_check_missing,
    backing_off,
    provisioning_round_failed,
    quota_missing,
    quota_reserved,
)
from ptoperator.plan.restart_budget import not_retryable, retry_uncharged
from ptoperator.plan.step_result import PlanContext, StepResult, delete_jobset
from ptoperator.plan.teardown import add_finalizer, deletion_actions, release_capacity, release_conditions
from ptoperator.plan.tensorboard import plan_tensorboard
from ptoperator.render import Layout, config_map, jobset
from ptoperator.settings import Settings
from ptoperator.status import running_phases, terminal_phases
from ptoperator.status.builder import ConditionUpdate, StatusUpdate, build, differs, is_only_progress, merge_conditions
from ptoperator.status.restart_counts import charged_restarts
from ptoperator.status.running_phases import with_common_conditions

_CLEANUP_POLL_S = 10.0
_REFUSED_POLL_S = 30.0
_SOON_S = 1.0


@dataclass(frozen=True)
class Plan:
    """What to do, and when to reconcile next.

    status: what to write, None if nothing changed. requeue_after: seconds until the next reconcile, None: only on an
    event. progress_only: unless an event arrives, that reconcile reads only progress. gives_turn: the status gives the
    job its turn in a queue, so all positions must have been read just now. optional: actions on objects without which
    the job runs as well, so that a refusal holds up nothing.
    """

    actions: tuple[Action | CloudAction, ...] = ()
    status: PostTrainJobStatus | None = None
    requeue_after: float | None = None
    progress_only: bool = False
    gives_turn: bool = False
    optional: tuple[Action, ...] = ()


def plan(state: Observed, settings: Settings) -> Plan:
    """Decide what to do about one job, and about its TensorBoard, now."""
    planned, board = _plan_job(state, settings), plan_tensorboard(state)
    if board.requeue_after is None:
        return replace(planned, optional=board.actions)
    due = max(board.requeue_after, _SOON_S)
    due = min(due, planned.requeue_after or due)
    return replace(planned, optional=board.actions, requeue_after=due, progress_only=False)


def _plan_job(state: Observed, settings: Settings) -> Plan:
    if state.job.is_deleting:
        actions = deletion_actions(state, settings)  # owner references take everything else away
        return Plan(actions, _finished_status(state), settings.cloud_poll_seconds if state.job.has_finalizer else None)
    if state.status.phase.is_terminal:
        return _plan_finished(state, settings)
    layout = state.layout
    if layout is None:
        assert isinstance(state.job.parsed, SpecError)
        return _report(state, None, settings, StepResult(terminal_phases.invalid_spec(state.job.parsed)))
    if state.job.uses_pools and settings.has_gke and not state.job.has_finalizer:
        return Plan((add_finalizer(state),), requeue_after=0.0)
    context = PlanContext(state, layout, settings)
    step = next(answer for answer in (guard(context) for guard in _STEPS) if answer is not None)
    return _report(state, layout, settings, step)


def _run_directory_conflict(context: PlanContext) -> StepResult | None:
    """End the job if another one owns its run directory. Checked once, before anything is created."""
    if not context.state.run_directory_owner or context.state.status.holds(ConditionType.VALIDATED):
        return None
    return StepResult(terminal_phases.output_conflict(context.layout, context.state.run_directory_owner))


def _finished(context: PlanContext) -> StepResult | None:
    """End the job with its JobSet, or with its trainer if the JobSet is gone."""
    state = context.state
    if state.jobset is not None and not state.is_jobset_ours:
        return None
    if state.jobset_condition("Completed"):
        return StepResult(terminal_phases.succeeded(context.layout, state))
    failed = state.jobset_condition("Failed")
    if failed:
        return retry_uncharged(context, failed) or StepResult(
            terminal_phases.jobset_failed(context.layout, state, failed)
        )
    is_done = state.progress is not None and state.progress.stage == "done" and state.progress.job_uid == state.job.uid
    if state.jobset is None and is_done:
        return StepResult(terminal_phases.succeeded(context.layout, state))
    return None


def _suspended(context: PlanContext) -> StepResult | None:
    """Remove the pods of a suspended job, after they had time to save.

    A queued JobSet is deleted, because Kueue owns its suspend field. So is one whose job changed its queue, because the
    label is immutable, and one whose pods name node pools, because those are released. Any other is suspended.
    """
    if not context.policy_suspend:
        return None
    state = context.state
    actions: tuple[Action | CloudAction, ...] = delete_preflight(state)
    if state.jobset is not None and state.is_jobset_ours and not state.is_jobset_deleting:
        if context.queue or state.jobset_queue or state.job.uses_pools:
            actions = (delete_jobset(state),)
        elif not state.is_jobset_suspended:
            actions = (_suspend_jobset(context, True),)
    release = release_capacity(state, context.settings)
    update = running_phases.suspended(context.layout, state, has_chips=bool(release and release.status.node_pools))
    if release is None:
        return StepResult(update, actions, _CLEANUP_POLL_S if state.unfinished_pods else None)
    update = replace(
        update, capacity=release.status, conditions={**update.conditions, **release_conditions(state, release.status)}
    )
    return StepResult(update, (*actions, *release.actions), context.settings.cloud_poll_seconds)


def _deadline_exceeded(context: PlanContext) -> StepResult | None:
    """End the job after `activeDeadlineSeconds` of holding nodes, counted anew after each suspension."""
    left = _deadline_left_s(context)
    if left is None or left > 0:
        return None
    return StepResult(terminal_phases.deadline_exceeded(context.layout, context.state))


def _start_failed(context: PlanContext) -> StepResult | None:
    """End the job if a container has been unable to start for too long."""
    failure = context.state.final_start_failure(context.settings.start_failure_seconds)
    if failure is None:
        return None
    now, log = timestamps.to_text(context.state.now), context.state.start_log
    cause = FailureStatus(failure_class=failure.kind, message=failure.message, pod=failure.pod, log=log, time=now)
    return StepResult(terminal_phases.failed_with(context.layout, cause))


def _cleanup_pending(context: PlanContext) -> StepResult | None:
    """Wait until earlier objects are deleted, or until another owner's JobSet frees the name."""
    state = context.state
    if state.jobset is not None and not (
        state.is_jobset_ours or state.is_jobset_deleting or running_phases.is_of_earlier(state)
    ):
        return StepResult(running_phases.name_taken(context.layout, state), requeue_after=_REFUSED_POLL_S)
    if state.jobset is not None and (not state.is_jobset_ours or state.is_jobset_deleting):
        return StepResult(running_phases.cleaning_up(context.layout, state), requeue_after=_CLEANUP_POLL_S)
    if state.jobset is None and state.unfinished_pods:
        return StepResult(running_phases.cleaning_up(context.layout, state), requeue_after=_CLEANUP_POLL_S)
    return None


def _create_jobset(context: PlanContext) -> StepResult | None:
    """Create the objects of the run: the ConfigMap first, because the pods mount it."""
    if context.state.jobset is not None:
        return None
    capacity = context.state.status.capacity
    decision = Decision(True, capacity) if context.quota_first else provide(context.capacity_request)
    layout = replace(context.layout, pools=decision.pools, is_queued_provisioning=decision.is_queued_provisioning)
    counts = context.state.status.restarts
    actions = (
        *decision.actions,
        Create(CONFIGMAPS, config_map(layout)),
        Create(JOBSETS, jobset(layout, sum(counts.values()), charged_restarts(counts))),
    )
    if context.state.rejection:
        update = replace(running_phases.create_refused(layout, context.state), capacity=decision.status)
        return StepResult(update, actions, _REFUSED_POLL_S)
    update = replace(running_phases.jobset_created(layout, context.state), capacity=decision.status)
    return StepResult(update, actions, context.settings.resync_seconds)


def _follow_jobset(context: PlanContext) -> StepResult:
    """Report the state of the JobSet, and resume it if it was suspended."""
    state = context.state
    actions: list[Action] = []
    if state.config_map_missing:
        actions.append(Create(CONFIGMAPS, config_map(context.layout)))
    if state.is_jobset_suspended and not state.jobset_queue:
        actions.append(_suspend_jobset(context, False))
    update = running_phases.jobset_active(context.layout, state, context.settings.silent_start_seconds)
    capacity = record_pools(state.status.capacity, state.jobset_pools)
    update = replace(update, capacity=mark_ready(capacity, state.now) if context.has_nodes else capacity)
    is_up = not state.has_missing_pods and all(map(is_started, state.current_pods))
    only_progress = not actions and update.phase is not Phase.QUEUED and is_up
    return StepResult(update, tuple(actions), _requeue_after_s(context, update), only_progress)


_STEPS: tuple[Callable[[PlanContext], StepResult | None], ...] = (
    _run_directory_conflict, _finished, _suspended, _deadline_exceeded, not_retryable, _start_failed, hang_detected,
    admission_check_missing, provisioning_round_failed, stale_jobset, nodes_missing, _cleanup_pending,
    preflight_pending, backing_off, capacity_pending, _create_jobset, quota_reserved, quota_missing, _follow_jobset,
)  # fmt: skip


def with_failed_write(state: Observed, message: str) -> PostTrainJobStatus | None:
    """Return the status with a write that failed, or None if it says so already. message: which one, and why."""
    old = state.status
    kind = ConditionType.CAPACITY_READY if state.jobset is None or old.phase.is_terminal else ConditionType.RUNNING
    update = ConditionUpdate(False, Reason.WRITE_FAILED, f"the API server fails a request: {message}")
    conditions = merge_conditions(old.conditions, {kind: update}, state.job.generation, state.now)
    new = old.model_copy(update={"conditions": conditions})
    return new if differs(old, new) else None


def _plan_finished(state: Observed, settings: Settings) -> Plan:
    """Release a finished job's chips, stop its pods, and delete it when its TTL is over."""
    actions: list[Action | CloudAction] = []
    is_over = state.jobset_condition("Completed") or state.jobset_condition("Failed")
    if state.jobset is not None and state.is_jobset_ours and not is_over and not state.is_jobset_deleting:
        actions.append(delete_jobset(state))
    release = release_capacity(state, settings)
    status = _finished_status(state, release.status if release else state.status.capacity)
    if release is not None:
        return Plan((*actions, *release.actions), status, settings.cloud_poll_seconds)
    ttl, age = state.job.ttl_seconds, timestamps.seconds_since(state.status.completion_time, state.now)
    if ttl is None or age is None:
        return Plan(tuple(actions), status)
    if age >= ttl:
        actions.append(Delete(POSTTRAINJOBS, state.job.name, state.job.namespace, state.job.uid))
        status = None
    return Plan(tuple(actions), status, requeue_after=max(1.0, ttl - age))


def _finished_status(state: Observed, capacity: CapacityStatus | None = None) -> PostTrainJobStatus | None:
    """Return the status of a finished or deleting job with its capacity and release, or None if unchanged."""
    capacity = capacity or state.status.capacity
    conditions = merge_conditions(
        state.status.conditions, release_conditions(state, capacity), state.job.generation, state.now
    )
    new = state.status.model_copy(update={"conditions": conditions, "capacity": capacity})
    return new if differs(state.status, new) else None


def _report(state: Observed, layout: Layout | None, settings: Settings, step: StepResult) -> Plan:
    """Return the plan of a step, with a status if it changed and is not rate-limited."""
    update = step.update
    if layout is not None:
        update = with_common_conditions(layout, settings, update, state)
    old, new = state.status, build(state, update, layout)
    if new.phase.is_terminal:
        release = release_capacity(state, settings) if update.capacity is None else None
        capacity = release.status if release else new.capacity
        return Plan(step.actions, new.model_copy(update={"capacity": capacity}), requeue_after=0.0)
    can_wait = is_only_progress(old, new) and not any(state.start_failures())
    wait = _status_delay_s(state, settings) if can_wait else 0.0
    if wait and differs(old, new):
        return Plan(step.actions, None, min(wait, step.requeue_after or wait), step.progress_only)
    status = new if differs(old, new) else None
    return Plan(step.actions, status, step.requeue_after, step.progress_only, step.gives_turn)


def _status_delay_s(state: Observed, settings: Settings) -> float:
    """Return the seconds until progress may be written again."""
    age = timestamps.seconds_since(state.status.accounted_until, state.now)
    return 0.0 if age is None else max(0.0, settings.progress_seconds - age)


def _requeue_after_s(context: PlanContext, update: StatusUpdate) -> float:
    """Return the earliest of: progress, the queue, the deadline, the end of a failing start, resync."""
    delays = [context.settings.resync_seconds]
    if update.phase in (Phase.STARTING, Phase.RUNNING, Phase.RESTARTING):
        delays.append(context.settings.progress_seconds)
    if update.phase is Phase.QUEUED:  # who is ahead changes without a word to us
        delays.append(context.settings.queue_seconds)
    left = _deadline_left_s(context)
    if left is not None:
        delays.append(max(1.0, left))
    if open_attempt(context.state.status.capacity) and not context.has_nodes:
        delays.append(context.settings.cloud_poll_seconds)
    if context.state.has_missing_pods:  # nobody sends an event of what is not created
        delays.append(USUAL_CREATION_S if context.state.is_jobset_young else context.settings.progress_seconds)
    if any(context.state.start_failures()):
        delays.append(context.settings.start_failure_seconds / 10)
    return min(delays)


def _deadline_left_s(context: PlanContext) -> float | None:
    limit = context.layout.job.spec.run_policy.active_deadline_seconds
    status = context.state.status
    if limit is None or status.start_time is None or context.state.is_jobset_suspended:
        return None
    resumed = status.condition(ConditionType.SUSPENDED)
    since = max(status.start_time, resumed.last_transition_time if resumed else "")
    age = timestamps.seconds_since(since, context.state.now)
    return None if age is None else limit - age


def _suspend_jobset(context: PlanContext, suspend: bool) -> Patch:
    return Patch(JOBSETS, context.layout.jobset, context.state.job.namespace, {"spec": {"suspend": suspend}})
