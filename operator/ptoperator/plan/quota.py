"""Guarded steps of a queued job that needs node pools: quota first, then chips, then pods. Pure.

Kueue reserves quota and asks, by an admission check, whether the pods may start. Only then does the operator go through
spec.capacity; it answers when the pools are ready, and until then Kueue creates no pods. Quota and chips are never held
without each other for long: when Kueue revokes the quota the pools are released, and when a round through spec.capacity
brings no chips the JobSet is deleted, which returns the quota until the next round.
"""

from dataclasses import replace

from ptapi.conditions import Reason
from ptapi.failures import FailureClass
from ptapi.status import CapacityStatus, FailureStatus
from ptkube.resources import JOBS
from ptoperator.capacity import open_attempt, provide
from ptoperator.capacity.provision import backoff_left_s, between_attempts
from ptoperator.kube import labels
from ptoperator.kube.actions import deletion
from ptoperator.kueue import admission_answer, workload
from ptoperator.kueue.workload import KueueState
from ptoperator.plan.capacity_steps import capacity_failed
from ptoperator.plan.step_result import PlanContext, StepResult, delete_jobset
from ptoperator.plan.teardown import release_capacity
from ptoperator.status import terminal_phases, waiting_phases
from ptoperator.status.builder import ConditionUpdate, StatusUpdate
from ptoperator.status.waiting_phases import QUOTA

_SOON_S = 1.0


def admission_check_missing(context: PlanContext) -> StepResult | None:
    """End a job that Kueue admitted without our AdmissionCheck: its node pools would never be created."""
    state, kueue = context.state, context.state.kueue
    if not context.quota_first or kueue is None or state.is_suspended_by_kueue or context.has_nodes:
        return None
    if kueue.check or not kueue.has_quota or open_attempt(state.status.capacity):
        return None
    message = (
        f"{_queue_name(kueue)} admits jobs without an admission check for their node pools; hint: add an "
        f"AdmissionCheck with controllerName {labels.POOLS_CHECK}, or use capacity: [{{type: existing}}]"
    )
    return StepResult(
        terminal_phases.failed_with(
            context.layout, FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=message)
        )
    )


def dispatched_elsewhere(context: PlanContext) -> StepResult | None:
    """End a job whose JobSet another cluster would run: what its pods mount is here, and so are its node pools."""
    state = context.state
    manager, queue = state.foreign_manager, state.jobset_queue
    if not manager:
        return None
    if manager == labels.MULTIKUEUE:
        what = f"queue {queue} sends jobs to other clusters (MultiKueue), whose pods would not find the job's ConfigMap"
    else:
        what = f"{manager} manages the JobSet (spec.managedBy), and the operator cannot follow its pods"
    message = f"{what}; hint: use a queue of this cluster, or create the job where it is to run, with an operator there"
    failure = FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=message)
    return StepResult(terminal_phases.failed_with(context.layout, failure))


def slice_check_missing(context: PlanContext) -> StepResult | None:
    """End a job that Kueue admitted without having GKE form its slices: its pods would never find them."""
    state, kueue = context.state, context.state.kueue
    if not context.layout.is_dynamic or kueue is None or state.is_suspended_by_kueue or context.has_nodes:
        return None
    if kueue.slicer or not kueue.has_quota:
        return None
    message = (
        f"{_queue_name(kueue)} admits jobs without having GKE form their slices; hint: install GKE's slice controller "
        f"for Kueue, and add an AdmissionCheck with controllerName {labels.SLICE_CHECK} (docs/guides/gke.md), or leave "
        "accelerator.dynamicSlicing out"
    )
    failure = FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=message)
    return StepResult(terminal_phases.failed_with(context.layout, failure))


def provisioning_round_failed(context: PlanContext) -> StepResult | None:
    """Return the quota during the pause after a round that brought no chips."""
    state, kueue = context.state, context.state.kueue
    if not context.quota_first or not state.is_suspended_by_kueue or state.is_jobset_deleting:
        return None
    if kueue is None or not kueue.has_quota or backoff_left_s(context.capacity_request) <= 0:
        return None
    last = state.status.capacity.attempts[-1]
    message = f"{last.option}: {last.outcome}; the quota is released"
    update = waiting_phases.waiting_for_quota(state, message, state.status.capacity)
    return StepResult(update, (delete_jobset(state),), context.settings.cloud_poll_seconds)


def backing_off(context: PlanContext) -> StepResult | None:
    """Stay out of the queue until the next round may begin."""
    if not context.quota_first or context.state.jobset is not None:
        return None
    decision = between_attempts(context.capacity_request)
    if decision is None:
        return None
    update = waiting_phases.waiting_for_quota(context.state, decision.message, decision.status)
    return StepResult(update, decision.actions, context.settings.cloud_poll_seconds, progress_only=not decision.actions)


def quota_reserved(context: PlanContext) -> StepResult | None:
    """Obtain the node pools that Kueue asks for. They are in status before Kueue gets the answer."""
    state, kueue, poll_s = context.state, context.state.kueue, context.settings.cloud_poll_seconds
    if kueue is None or not state.is_suspended_by_kueue or state.is_jobset_deleting:
        return None
    if kueue.is_answered:
        return StepResult(
            _provisioning(context, kueue, _starting_message(kueue), state.status.capacity), requeue_after=poll_s
        )
    if not kueue.needs_answer:
        return None
    if state.bound_jobs:
        update = _provisioning(
            context, kueue, "deleting child Jobs still bound to the previous node pools", state.status.capacity
        )
        # The JobSet makes them anew from its own template, which Kueue has restored.
        return StepResult(update, tuple(deletion(JOBS, job, state.job.namespace) for job in state.bound_jobs), _SOON_S)
    decision = provide(context.capacity_request)
    if decision.failure:
        return capacity_failed(context, decision)
    if not decision.ready:
        update = _provisioning(context, kueue, decision.message, decision.status)
        return StepResult(update, decision.actions, 0.0 if decision.is_soon else poll_s)
    update = _provisioning(context, kueue, _starting_message(kueue), decision.status)
    if decision.actions or decision.status != state.status.capacity:
        return StepResult(update, decision.actions, 0.0)
    return StepResult(update, (admission_answer.ready(context.layout, kueue, decision.pools, state.now),), poll_s)


def quota_missing(context: PlanContext) -> StepResult | None:
    """Release the chips of a job that has no quota or lost it."""
    state, kueue = context.state, context.state.kueue
    if not context.quota_first or not state.is_suspended_by_kueue or kueue is None or kueue.has_quota:
        return None
    release = release_capacity(state, context.settings)
    if release is None:
        return None
    update = waiting_phases.queued(context.layout, state)
    return StepResult(replace(update, capacity=release.status), release.actions, context.settings.cloud_poll_seconds)


def _provisioning(context: PlanContext, kueue: KueueState, message: str, capacity: CapacityStatus) -> StatusUpdate:
    update = waiting_phases.waiting_for_capacity(context.state, message, capacity)
    chips = workload.chips_message(context.layout.accelerator, context.layout.beside)
    condition = ConditionUpdate(True, Reason.ADMITTED, f"{_queue_name(kueue)} has reserved {chips}")
    return replace(update, conditions={**update.conditions, QUOTA: condition})


def _starting_message(kueue: KueueState) -> str:
    """Say what still happens between ready chips and the pods."""
    checks = [each for each in kueue.checks if each["name"] != kueue.check]
    other = workload.waiting_check(replace(kueue, workload={"status": {"admissionChecks": checks}}))
    return f"the chips are ready; {other}" if other else "the chips are ready; waiting for Kueue to create the pods"


def _queue_name(kueue: KueueState) -> str:
    return kueue.cluster_queue or f"queue {kueue.queue}"
