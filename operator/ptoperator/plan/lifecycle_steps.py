"""The steps that end, suspend or fail a job, whatever its chips."""

from dataclasses import replace

from ptapi.conditions import ConditionType
from ptapi.status import FailureStatus
from ptkube import timestamps
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube.actions import Action
from ptoperator.plan.preflight import delete_preflight
from ptoperator.plan.restart_budget import retry_uncharged
from ptoperator.plan.staging import delete_staging
from ptoperator.plan.step_result import CLEANUP_POLL_S, PlanContext, StepResult, delete_jobset, suspend_jobset
from ptoperator.plan.teardown import release_capacity, release_conditions
from ptoperator.status import terminal_phases, waiting_phases


def run_directory_conflict(context: PlanContext) -> StepResult | None:
    """End the job if another one owns its run directory. Checked once, before anything is created."""
    if not context.state.run.other_owner or context.state.status.holds(ConditionType.VALIDATED):
        return None
    return StepResult(terminal_phases.output_conflict(context.layout, context.state.run.other_owner))


def finished(context: PlanContext) -> StepResult | None:
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
    progress = state.run.progress
    is_done = progress is not None and progress.stage == "done" and progress.job_uid == state.job.uid
    if state.jobset is None and is_done:
        return StepResult(terminal_phases.succeeded(context.layout, state))
    return None


def suspended(context: PlanContext) -> StepResult | None:
    """Remove the pods of a suspended job, after they had time to save.

    A queued JobSet is deleted, because Kueue owns its suspend field. So is one whose job changed its queue, because the
    label is immutable, and one whose pods name node pools, because those are released. Any other is suspended.
    """
    if not context.policy_suspend:
        return None
    state = context.state
    actions: tuple[Action | CloudAction, ...] = (*delete_staging(state), *delete_preflight(state))
    if state.jobset is not None and state.is_jobset_ours and not state.is_jobset_deleting:
        if context.queue or state.jobset_queue or state.job.uses_pools:
            actions = (delete_jobset(state),)
        elif not state.is_jobset_suspended:
            actions = (suspend_jobset(context, True),)
    release = release_capacity(state, context.settings)
    update = waiting_phases.suspended(context.layout, state, has_chips=bool(release and release.status.node_pools))
    if release is None:
        return StepResult(update, actions, CLEANUP_POLL_S if state.unfinished_pods else None)
    update = replace(
        update, capacity=release.status, conditions={**update.conditions, **release_conditions(state, release.status)}
    )
    return StepResult(update, (*actions, *release.actions), context.settings.cloud_poll_seconds)


def deadline_exceeded(context: PlanContext) -> StepResult | None:
    """End the job after `activeDeadlineSeconds` of holding nodes, counted anew after each suspension."""
    left = deadline_left_s(context)
    if left is None or left > 0:
        return None
    return StepResult(terminal_phases.deadline_exceeded(context.layout, context.state))


def start_failed(context: PlanContext) -> StepResult | None:
    """End the job if a container has been unable to start for too long."""
    failure = context.state.final_start_failure(context.settings.start_failure_seconds)
    if failure is None:
        return None
    now, log = timestamps.to_text(context.state.now), context.state.start_log
    cause = FailureStatus(failure_class=failure.kind, message=failure.message, pod=failure.pod, log=log, time=now)
    return StepResult(terminal_phases.failed_with(context.layout, cause))


def deadline_left_s(context: PlanContext) -> float | None:
    """Return the seconds that `activeDeadlineSeconds` leaves; None without one, or while no nodes are held."""
    limit = context.layout.job.spec.run_policy.active_deadline_seconds
    status = context.state.status
    if limit is None or status.start_time is None or context.state.is_jobset_suspended:
        return None
    resumed = status.condition(ConditionType.SUSPENDED)
    since = max(status.start_time, resumed.last_transition_time if resumed else "")
    age = timestamps.seconds_since(since, context.state.now)
    return None if age is None else limit - age
