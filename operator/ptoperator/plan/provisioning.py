"""Guarded steps about chips: they come before the pods, and pods whose chips do not come go. Pure.

`capacity` decides how chips are obtained; here stands what that means for the JobSet.
"""

from __future__ import annotations

from dataclasses import replace

from ptapi.conditions import ConditionType
from ptkube import timestamps
from ptoperator.capacity import Decision, is_open, provide
from ptoperator.capacity.attempts import USUAL_WAIT_S, Candidate, candidate_of, give_up, overdue, start_again
from ptoperator.capacity.cloud import PoolState
from ptoperator.observe.state import Observed
from ptoperator.plan.step import Case, Step, delete_jobset
from ptoperator.status import running_phases, terminal_phases
from ptoperator.status.builder import Say

_LONGEST_REPAIR_S = 2.0 * USUAL_WAIT_S
"""GKE repairs a slice in minutes."""


def no_chips(case: Case, decision: Decision) -> Step:
    """The end of a job whose chips cannot be had; nothing more will be tried."""
    assert decision.failure is not None
    over = terminal_phases.ended(case.layout, decision.failure)
    says = Say(False, decision.failure.failure_class, decision.failure.message)
    over = replace(over, says={**over.says, ConditionType.CAPACITY_READY: says}, capacity=decision.status)
    return Step(over, decision.actions)


def chips_first(case: Case) -> Step | None:
    """Chips first, pods after; see `quota` for a job that needs Kueue's quota before them."""
    if case.seen.jobset is not None or case.quota_first:
        return None
    decision = provide(case.asked)
    if decision.ready:
        return None
    if decision.failure:
        return no_chips(case, decision)
    if decision.ahead is not None:
        situation = running_phases.in_line(case.seen, decision.message, decision.status)
        is_near = decision.ahead == 0
        wait = case.settings.cloud_poll_seconds if is_near else case.settings.queue_seconds
        return Step(situation, requeue_after=wait, progress_only=True)
    situation = running_phases.waiting_for_capacity(case.seen, decision.message, decision.status)
    if decision.is_soon:
        return Step(situation, decision.actions, 0.0, gives_turn=decision.is_turn)
    wait = case.settings.cloud_poll_seconds
    return Step(situation, decision.actions, wait, progress_only=not decision.actions)


def no_nodes(case: Case) -> Step | None:
    """Pods wait for nodes that do not come, or do not come back: the option's time is over, or their node pool is
    gone or broken. The JobSet goes, and capacity is looked for anew. Written before it is done."""
    seen = case.seen
    attempt = is_open(seen.status.capacity)
    is_waiting = seen.is_jobset_ours and not seen.is_jobset_deleting and not case.has_nodes
    if attempt is None or not (is_waiting or _is_repaired(seen)):
        return None
    if case.quota_first and seen.is_held_by_kueue:  # there are no pods
        return None
    candidate = candidate_of(case.asked, attempt)
    late = overdue(candidate, attempt, seen.now) if candidate and seen.jobset else None
    lost = _lost_pool(seen) or seen.booking.revoked or _lost_nodes(case, candidate)
    if late is not None:
        decision = give_up(case.asked, late)
    elif lost:
        decision = start_again(case.asked, f"{attempt.outcome or 'pods were waiting'}; then {lost}")
    else:
        return None
    if decision.failure:
        return no_chips(case, decision)
    return Step(running_phases.waiting_for_capacity(seen, decision.message, decision.status), requeue_after=0.0)


def abandoned(case: Case) -> Step | None:
    """Pods were made for an attempt that is over: they go before the next begins."""
    seen = case.seen
    attempts = seen.status.capacity.attempts
    if not attempts or attempts[-1].ended is None or seen.jobset is None or not seen.is_jobset_ours:
        return None
    if seen.is_jobset_deleting or (case.quota_first and seen.is_held_by_kueue):
        return None
    message = f"{attempts[-1].option}: {attempts[-1].outcome}"
    told = running_phases.out_of_line if case.quota_first else running_phases.waiting_for_capacity
    situation = told(seen, message, seen.status.capacity)
    return Step(situation, (delete_jobset(seen),), case.settings.cloud_poll_seconds)


def _lost_pool(seen: Observed) -> str:
    """A node pool that the job had and that will bring no nodes any more; nothing if the cloud cannot say."""
    cloud = seen.cloud
    if cloud is None or cloud.trouble is not None:
        return ""
    states = {pool.name: pool.state for pool in cloud.of_job(seen.uid)}
    for name in seen.jobset_pools:
        state = states.get(name)
        is_stuck = state is PoolState.RUNNING_WITH_ERROR and _waits_for_nodes_s(seen) >= USUAL_WAIT_S
        if state in (None, PoolState.STOPPING, PoolState.ERROR) or is_stuck:
            return f"node pool {name} {'was gone' if state is None else f'was {state}'}"
    return ""


def _is_repaired(seen: Observed) -> bool:
    """Before the pods of the next try: a pool that ran is not running now."""
    if seen.jobset is not None or seen.cloud is None or seen.cloud.trouble is not None:
        return False
    return any(pool.state is not PoolState.RUNNING for pool in seen.cloud.of_job(seen.uid))


def _lost_nodes(case: Case, candidate: Candidate | None) -> str:
    """Nodes of a pool never came, or went away, as spot ones do, and stay away for as long as the option may take. One
    that may take for ever has a pool that is paid for and does not work: the next one may."""
    if candidate is None or (candidate.wait_s is None and candidate.is_ready_with_pods):
        return ""
    limit_s, waited_s = candidate.wait_s or _LONGEST_REPAIR_S, _waits_for_nodes_s(case.seen)
    return f"pods had no nodes for {timestamps.duration(waited_s)}" if waited_s >= limit_s else ""


def _waits_for_nodes_s(seen: Observed) -> float:
    """How long some pod has had no node although its chips were there."""
    capacity, attempt = seen.status.condition(ConditionType.CAPACITY_READY), is_open(seen.status.capacity)
    if capacity is None or capacity.status == "True" or attempt is None or attempt.ready is None:
        return 0.0
    return timestamps.seconds_since(max(capacity.last_transition_time, attempt.ready), seen.now) or 0.0
