"""Guarded steps of a job with a queue whose node pools the operator makes: quota first, then chips, then pods. Pure.

Kueue reserves quota and asks, by an admission check, whether the pods may come. Only then does the operator go through
spec.capacity, and it answers when the pools are there; until then Kueue makes no pods. Quota and chips are never held
without each other for long: when Kueue takes the quota back the pools are given back, and when a round through
spec.capacity brought no chips the JobSet is deleted, which gives the quota back until the next round.
"""

from __future__ import annotations

from dataclasses import replace

from ptapi.conditions import Reason
from ptapi.failures import FailureClass
from ptapi.status import CapacityStatus, FailureStatus
from ptkube.resources import JOBS
from ptoperator.capacity import is_open, provide
from ptoperator.capacity.provision import between, pause_left
from ptoperator.kube import labels
from ptoperator.kube.actions import deletion
from ptoperator.kueue import admission_answer, workload
from ptoperator.kueue.workload import Place
from ptoperator.plan.provisioning import no_chips
from ptoperator.plan.step import Case, Step, delete_jobset
from ptoperator.plan.teardown import given_back
from ptoperator.status import running_phases, terminal_phases
from ptoperator.status.builder import Say, Situation
from ptoperator.status.running_phases import QUOTA

_SOON_S = 1.0


def unasked(case: Case) -> Step | None:
    """Kueue let the pods run and never asked for node pools, so they would wait for ever."""
    seen, place = case.seen, case.seen.place
    if not case.quota_first or place is None or seen.is_held_by_kueue or case.has_nodes:
        return None
    if place.check or not place.has_quota or is_open(seen.status.capacity):
        return None
    message = (
        f"{_where(place)} admits jobs without asking for their node pools; hint: give it an AdmissionCheck with "
        f"controllerName {labels.POOLS_CHECK}, or use capacity: [{{type: existing}}]"
    )
    return Step(
        terminal_phases.ended(case.layout, FailureStatus(failure_class=FailureClass.CONFIG_ERROR, message=message))
    )


def in_vain(case: Case) -> Step | None:
    """A whole round brought no chips: others may have the quota during the pause."""
    seen, place = case.seen, case.seen.place
    if not case.quota_first or not seen.is_held_by_kueue or seen.is_jobset_deleting:
        return None
    if place is None or not place.has_quota or pause_left(case.asked) <= 0:
        return None
    last = seen.status.capacity.attempts[-1]
    message = f"{last.option}: {last.outcome}; the quota is given back"
    situation = running_phases.out_of_line(seen, message, seen.status.capacity)
    return Step(situation, (delete_jobset(seen),), case.settings.cloud_poll_seconds)


def paused(case: Case) -> Step | None:
    """Not in the queue before the next round may begin."""
    if not case.quota_first or case.seen.jobset is not None:
        return None
    decision = between(case.asked)
    if decision is None:
        return None
    situation = running_phases.out_of_line(case.seen, decision.message, decision.status)
    return Step(situation, decision.actions, case.settings.cloud_poll_seconds, progress_only=not decision.actions)


def chips_for_quota(case: Case) -> Step | None:
    """Kueue has reserved quota and asks for node pools. Written down that they are there before it is told so."""
    seen, place, poll_s = case.seen, case.seen.place, case.settings.cloud_poll_seconds
    if place is None or not seen.is_held_by_kueue or seen.is_jobset_deleting:
        return None
    if place.is_answered:
        return Step(_provisioning(case, place, _starting_words(place), seen.status.capacity), requeue_after=poll_s)
    if not place.is_asking:
        return None
    if seen.bound_jobs:
        situation = _provisioning(case, place, "what was bound to node pools of before goes", seen.status.capacity)
        # The JobSet makes them anew from its own template, which Kueue has restored.
        return Step(situation, tuple(deletion(JOBS, job, seen.namespace) for job in seen.bound_jobs), _SOON_S)
    decision = provide(case.asked)
    if decision.failure:
        return no_chips(case, decision)
    if not decision.ready:
        situation = _provisioning(case, place, decision.message, decision.status)
        return Step(situation, decision.actions, 0.0 if decision.is_soon else poll_s)
    situation = _provisioning(case, place, _starting_words(place), decision.status)
    if decision.actions or decision.status != seen.status.capacity:
        return Step(situation, decision.actions, 0.0)
    return Step(situation, (admission_answer.ready(case.layout, place, decision.pools, seen.now),), poll_s)


def chips_without_quota(case: Case) -> Step | None:
    """Kueue took the quota back, or has not reserved any: what the job still holds is given back."""
    seen, place = case.seen, case.seen.place
    if not case.quota_first or not seen.is_held_by_kueue or place is None or place.has_quota:
        return None
    back = given_back(seen, case.settings)
    if back is None:
        return None
    situation = running_phases.queued(case.layout, seen)
    return Step(replace(situation, capacity=back.status), back.actions, case.settings.cloud_poll_seconds)


def _provisioning(case: Case, place: Place, message: str, capacity: CapacityStatus) -> Situation:
    situation = running_phases.waiting_for_capacity(case.seen, message, capacity)
    say = Say(True, Reason.ADMITTED, f"{_where(place)} has reserved {workload.wanted(case.layout.accelerator)}")
    return replace(situation, says={**situation.says, QUOTA: say})


def _starting_words(place: Place) -> str:
    """What is left between the chips and the pods."""
    checks = [each for each in place.checks if each["name"] != place.check]
    other = workload.waiting_check(replace(place, workload={"status": {"admissionChecks": checks}}))
    return f"chips are there; {other}" if other else "chips are there; Kueue makes the pods next"


def _where(place: Place) -> str:
    return place.cluster_queue or f"queue {place.queue}"
