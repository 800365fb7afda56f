"""The steps around a job's JobSet: the name is free, it is created, it is followed."""

from dataclasses import replace

from ptapi.conditions import Phase
from ptkube.resources import CONFIGMAPS, JOBS, JOBSETS
from ptoperator.capacity import Decision, open_attempt, provide
from ptoperator.capacity.attempts import mark_ready, mark_scaling_up, record_pools
from ptoperator.kube.actions import Action, Create, CreateToken, deletion
from ptoperator.observe.state import USUAL_CREATION_S, is_started
from ptoperator.plan.lifecycle_steps import deadline_left_s
from ptoperator.plan.step_result import CLEANUP_POLL_S, PlanContext, StepResult, suspend_jobset
from ptoperator.render import config_maps, jobset, pod_group, pod_group_kind, sampler_secret
from ptoperator.render.pods.environment_variables import TOKEN_KEY
from ptoperator.status import running_phases, waiting_phases
from ptoperator.status.builder import StatusUpdate
from ptoperator.status.restart_counts import charged_restarts

_REFUSED_POLL_S = 30.0


def cleanup_pending(context: PlanContext) -> StepResult | None:
    """Wait until earlier objects are deleted, or until another owner's JobSet frees the name."""
    state = context.state
    if state.jobset is not None and not (
        state.is_jobset_ours or state.is_jobset_deleting or waiting_phases.is_of_earlier(state)
    ):
        return StepResult(waiting_phases.name_taken(context.layout, state), requeue_after=_REFUSED_POLL_S)
    if state.jobset is not None and (not state.is_jobset_ours or state.is_jobset_deleting):
        return StepResult(waiting_phases.cleaning_up(context.layout, state), requeue_after=CLEANUP_POLL_S)
    if state.jobset is None and state.unfinished_pods:
        return StepResult(waiting_phases.cleaning_up(context.layout, state), requeue_after=CLEANUP_POLL_S)
    return None


def create_jobset(context: PlanContext) -> StepResult | None:
    """Create the objects of the run: ConfigMaps first, because the pods mount them."""
    if context.state.jobset is not None:
        return None
    capacity = context.state.status.capacity
    decision = Decision(True, capacity) if context.quota_first else provide(context.capacity_request)
    layout = replace(context.layout, pools=decision.pools, is_queued_provisioning=decision.is_queued_provisioning)
    counts, gang = context.state.status.pod_restarts, pod_group_kind(layout)
    actions = (
        *decision.actions,
        *(Create(CONFIGMAPS, each) for each in config_maps(layout)),
        *([CreateToken(sampler_secret(layout), TOKEN_KEY)] if layout.samplers else []),
        *([Create(gang, pod_group(layout))] if gang else []),
        Create(JOBSETS, jobset(layout, sum(counts.values()), charged_restarts(counts))),
    )
    if context.state.rejection:
        update = replace(waiting_phases.create_refused(layout, context.state), capacity=decision.status)
        return StepResult(update, actions, _REFUSED_POLL_S)
    update = replace(running_phases.jobset_created(layout, context.state), capacity=decision.status)
    return StepResult(update, actions, context.settings.resync_seconds)


def follow_jobset(context: PlanContext) -> StepResult:
    """Report the state of the JobSet, and resume it if it was suspended."""
    state = context.state
    actions: list[Action] = []
    if state.config_map_missing:
        actions += [Create(CONFIGMAPS, each) for each in config_maps(context.layout)]
    # A server that is asked to stop may exit with 0, which its Job takes for done; the JobSet makes a missing Job anew.
    actions += [deletion(JOBS, job, state.job.namespace) for job in state.ended_jobs]
    if state.is_jobset_suspended and not state.jobset_queue:
        actions.append(suspend_jobset(context, False))
    update = running_phases.jobset_active(context.layout, state, context.settings.silent_start_seconds)
    capacity = record_pools(state.status.capacity, state.jobset_pools)
    if context.has_nodes:
        capacity = mark_ready(capacity, state.now)
    elif state.is_scaled_up:
        capacity = mark_scaling_up(capacity, state.now)
    update = replace(update, capacity=capacity)
    is_up = not state.has_missing_pods and all(map(is_started, state.current_pods))
    only_progress = not actions and update.phase is not Phase.QUEUED and is_up
    return StepResult(update, tuple(actions), _requeue_after_s(context, update), only_progress)


def _requeue_after_s(context: PlanContext, update: StatusUpdate) -> float:
    """Return the earliest of: progress, the queue, the deadline, the end of a failing start, resync."""
    delays = [context.settings.resync_seconds]
    if update.phase in (Phase.STARTING, Phase.RUNNING, Phase.RESTARTING):
        delays.append(context.settings.progress_seconds)
    if update.phase is Phase.QUEUED or context.state.may_be_scaled_up:  # both change without a word to us
        delays.append(context.settings.queue_seconds)
    left = deadline_left_s(context)
    if left is not None:
        delays.append(max(1.0, left))
    if open_attempt(context.state.status.capacity) and not context.has_nodes:
        delays.append(context.settings.cloud_poll_seconds)
    if context.state.has_missing_pods:  # nobody sends an event of what is not created
        delays.append(USUAL_CREATION_S if context.state.is_jobset_young else context.settings.progress_seconds)
    if any(context.state.start_failures()):
        delays.append(context.settings.start_failure_seconds / 10)
    return min(delays)
