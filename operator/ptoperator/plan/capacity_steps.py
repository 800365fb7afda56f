"""Guarded steps about chips: obtain them before the pods, and remove pods whose chips do not come. Pure.

`capacity` decides how chips are obtained; this module applies that to the JobSet.
"""

from dataclasses import replace

from ptapi.conditions import ConditionType
from ptkube import timestamps
from ptoperator.capacity import Decision, open_attempt, provide
from ptoperator.capacity.attempts import (
    USUAL_WAIT_S,
    Candidate,
    candidate_of,
    fail_attempt,
    restart_attempts,
    timeout_failure,
)
from ptoperator.capacity.cloud import PoolState
from ptoperator.observe.state import Observed
from ptoperator.plan.step_result import PlanContext, StepResult, delete_jobset
from ptoperator.status import terminal_phases, waiting_phases
from ptoperator.status.builder import ConditionUpdate

_MAX_REPAIR_S = 2.0 * USUAL_WAIT_S
"""GKE repairs a slice in minutes."""


def capacity_failed(context: PlanContext, decision: Decision) -> StepResult:
    """End a job whose chips cannot be obtained."""
    assert decision.failure is not None
    over = terminal_phases.failed_with(context.layout, decision.failure)
    conditions = ConditionUpdate(False, decision.failure.failure_class, decision.failure.message)
    over = replace(
        over, conditions={**over.conditions, ConditionType.CAPACITY_READY: conditions}, capacity=decision.status
    )
    return StepResult(over, decision.actions)


def capacity_pending(context: PlanContext) -> StepResult | None:
    """Obtain chips before pods; see `quota` for a job that needs Kueue's quota before them."""
    if context.state.jobset is not None or context.quota_first:
        return None
    decision = provide(context.capacity_request)
    if decision.ready:
        return None
    if decision.failure:
        return capacity_failed(context, decision)
    if decision.in_line_s is not None:
        update = waiting_phases.waiting_in_queue(context.state, decision.message, decision.status)
        return StepResult(update, requeue_after=decision.in_line_s, progress_only=True)
    update = waiting_phases.waiting_for_capacity(context.state, decision.message, decision.status)
    if decision.is_soon:
        return StepResult(update, decision.actions, 0.0, gives_turn=decision.is_turn)
    wait = context.settings.cloud_poll_seconds
    return StepResult(update, decision.actions, wait, progress_only=not decision.actions)


def nodes_missing(context: PlanContext) -> StepResult | None:
    """End the attempt if its nodes do not come, or do not come back.

    The option's time is over, or the node pool is lost or broken. The JobSet is deleted and capacity obtained anew.
    Written to status before it is done.
    """
    state = context.state
    attempt = open_attempt(state.status.capacity)
    is_waiting = state.is_jobset_ours and not state.is_jobset_deleting and not context.has_nodes
    if attempt is None or not (is_waiting or _is_pool_repairing(state)):
        return None
    if context.quota_first and state.is_suspended_by_kueue:  # there are no pods
        return None
    candidate = candidate_of(context.capacity_request, attempt)
    late = timeout_failure(candidate, attempt, state.now) if candidate and state.jobset else None
    lost = _lost_pool(state) or state.provisioning.revoked or _lost_nodes(context, candidate)
    if late is not None:
        decision = fail_attempt(context.capacity_request, late)
    elif lost:
        decision = restart_attempts(context.capacity_request, f"{attempt.outcome or 'pods were waiting'}; then {lost}")
    else:
        return None
    if decision.failure:
        return capacity_failed(context, decision)
    return StepResult(waiting_phases.waiting_for_capacity(state, decision.message, decision.status), requeue_after=0.0)


def stale_jobset(context: PlanContext) -> StepResult | None:
    """Delete a JobSet whose attempt is over, before the next attempt begins."""
    state = context.state
    attempts = state.status.capacity.attempts
    if not attempts or attempts[-1].ended is None or state.jobset is None or not state.is_jobset_ours:
        return None
    if state.is_jobset_deleting or (context.quota_first and state.is_suspended_by_kueue):
        return None
    message = f"{attempts[-1].option}: {attempts[-1].outcome}"
    build_update = waiting_phases.waiting_for_quota if context.quota_first else waiting_phases.waiting_for_capacity
    update = build_update(state, message, state.status.capacity)
    return StepResult(update, (delete_jobset(state),), context.settings.cloud_poll_seconds)


def _lost_pool(state: Observed) -> str:
    """Say which of the job's node pools will bring no more nodes; empty if none, or if the cloud cannot tell."""
    cloud = state.cloud
    if cloud is None or cloud.failure is not None:
        return ""
    pod_states = {pool.name: pool.state for pool in cloud.of_job(state.job.uid)}
    for name in state.jobset_pools:
        pod_state = pod_states.get(name)
        is_stuck = pod_state is PoolState.RUNNING_WITH_ERROR and _wait_for_nodes_s(state) >= USUAL_WAIT_S
        if pod_state in (None, PoolState.STOPPING, PoolState.ERROR) or is_stuck:
            return f"node pool {name} {'was gone' if pod_state is None else f'was {pod_state}'}"
    return ""


def _is_pool_repairing(state: Observed) -> bool:
    """Return True if a pool that was ready is not running, before the next attempt's pods exist."""
    if state.jobset is not None or state.cloud is None or state.cloud.failure is not None:
        return False
    return any(pool.state is not PoolState.RUNNING for pool in state.cloud.of_job(state.job.uid))


def _lost_nodes(context: PlanContext, candidate: Candidate | None) -> str:
    """Say that pods had no nodes for as long as the option may take; empty if not.

    An option without a limit gets one here: its pool costs money and does not work, and the next one may.
    """
    if candidate is None or (candidate.wait_s is None and candidate.is_ready_with_pods):
        return ""
    limit_s, waited_s = candidate.wait_s or _MAX_REPAIR_S, _wait_for_nodes_s(context.state)
    return f"pods had no nodes for {timestamps.duration(waited_s)}" if waited_s >= limit_s else ""


def _wait_for_nodes_s(state: Observed) -> float:
    """Return how long a pod has had no node although its chips were ready."""
    capacity, attempt = state.status.condition(ConditionType.CAPACITY_READY), open_attempt(state.status.capacity)
    if capacity is None or capacity.status == "True" or attempt is None or attempt.ready is None:
        return 0.0
    return timestamps.seconds_since(max(capacity.last_transition_time, attempt.ready), state.now) or 0.0
