"""Decide what to do about one job: from the observed state to actions, status and the time of the next reconcile.

`plan` is pure: a sequence of guarded steps, of which the first that applies answers. It is level-triggered: it needs no
memory of what it did before, and a crash between any two of its effects leaves a state from which the same steps
continue.

The reconciler keeps the order of effects: actions, then events, then status. A decision to end a job, or an attempt at
its capacity, is written to status first and carried out by the next reconcile: otherwise a crash in between would start
it again.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from ptapi.conditions import ConditionType, Reason
from ptapi.errors import SpecError
from ptapi.status import PostTrainJobStatus
from ptkube import timestamps
from ptoperator.observe.state import Observed
from ptoperator.plan.capacity_steps import capacity_pending, nodes_missing, stale_jobset
from ptoperator.plan.finished_job import finished_status, plan_finished
from ptoperator.plan.hang import hang_detected
from ptoperator.plan.jobset_steps import cleanup_pending, create_jobset, follow_jobset
from ptoperator.plan.lifecycle_steps import (
    deadline_exceeded,
    finished,
    run_directory_conflict,
    start_failed,
    suspended,
)
from ptoperator.plan.optional.priority_boost import plan_priority_boost
from ptoperator.plan.optional.sandboxes import with_sandboxes
from ptoperator.plan.optional.serving import with_server
from ptoperator.plan.optional.tensorboard import plan_tensorboard
from ptoperator.plan.preflight import preflight_pending
from ptoperator.plan.quota import (
    admission_check_missing,
    backing_off,
    dispatched_elsewhere,
    provisioning_round_failed,
    quota_missing,
    quota_reserved,
    slice_check_missing,
)
from ptoperator.plan.restart_budget import not_retryable
from ptoperator.plan.staging import staging_pending
from ptoperator.plan.step_result import Plan, PlanContext, StepResult
from ptoperator.plan.teardown import add_finalizer, deletion_actions, release_capacity
from ptoperator.render import Layout
from ptoperator.settings import Settings
from ptoperator.status import terminal_phases
from ptoperator.status.builder import ConditionUpdate, build, differs, is_only_progress, merge_conditions
from ptoperator.status.common_conditions import with_common_conditions

_SOON_S = 1.0


def plan(state: Observed, settings: Settings) -> Plan:
    """Decide what to do about one job, its TensorBoard, its priority in Kueue and its sandboxes, now."""
    planned, board, boost = _plan_job(state, settings), plan_tensorboard(state), plan_priority_boost(state, settings)
    planned = replace(planned, optional=(*board.actions, *boost.actions))
    planned = with_sandboxes(state, planned, settings.progress_seconds)
    if boost.requeue_after is not None and boost.requeue_after < (planned.requeue_after or math.inf):
        planned = replace(planned, requeue_after=max(boost.requeue_after, _SOON_S), progress_only=False)
    if board.requeue_after is None:
        return planned
    due = max(board.requeue_after, _SOON_S)
    return replace(planned, requeue_after=min(due, planned.requeue_after or due), progress_only=False)


def _plan_job(state: Observed, settings: Settings) -> Plan:
    if state.job.is_deleting:
        actions = deletion_actions(state, settings)  # owner references take everything else away
        return Plan(actions, finished_status(state), settings.cloud_poll_seconds if state.job.has_finalizer else None)
    if state.status.phase.is_terminal:
        return with_server(state, plan_finished(state, settings))
    layout = state.layout
    if layout is None:
        assert isinstance(state.job.parsed, SpecError)
        return _report(state, None, settings, StepResult(terminal_phases.invalid_spec(state.job.parsed)))
    if state.job.uses_pools and settings.has_gke and not state.job.has_finalizer:
        return Plan((add_finalizer(state),), requeue_after=0.0)
    context = PlanContext(state, layout, settings)
    step = next(answer for answer in (guard(context) for guard in _STEPS) if answer is not None)
    return _report(state, layout, settings, step)


_STEPS: tuple[Callable[[PlanContext], StepResult | None], ...] = (
    run_directory_conflict, finished, suspended, deadline_exceeded, not_retryable, start_failed, hang_detected,
    dispatched_elsewhere, admission_check_missing, slice_check_missing, provisioning_round_failed, stale_jobset,
    nodes_missing, cleanup_pending, staging_pending, preflight_pending, backing_off, capacity_pending, create_jobset,
    quota_reserved, quota_missing, follow_jobset,
)  # fmt: skip


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
    """Return the seconds until progress may be written again; 0 if it was written by a clock that is ahead."""
    last = timestamps.from_text(state.status.accounted_until)
    age = math.inf if last is None else (state.now - last).total_seconds()
    return max(0.0, settings.progress_seconds - age) if age >= 0 else 0.0


def with_failed_write(state: Observed, message: str) -> PostTrainJobStatus | None:
    """Return the status with a write that failed, or None if it says so already. message: which one, and why."""
    old = state.status
    kind = ConditionType.CAPACITY_READY if state.jobset is None or old.phase.is_terminal else ConditionType.RUNNING
    update = ConditionUpdate(False, Reason.WRITE_FAILED, f"the API server fails a request: {message}")
    conditions = merge_conditions(old.conditions, {kind: update}, state.job.generation, state.now)
    new = old.model_copy(update={"conditions": conditions})
    return new if differs(old, new) else None
