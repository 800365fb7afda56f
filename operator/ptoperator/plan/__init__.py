"""Decides everything, does nothing: from what was observed of one job to actions, status and when to look again.

It reads as a sequence of guarded steps; the first that applies answers. Level-triggered: it needs no memory of what
it did before, and a crash between any two of its effects leaves a state from which the same steps go on.

The order of effects that `reconcile` keeps: actions, then events, then status. A decision to end a job, or an attempt
at its capacity, is written to status first and carried out by the next look: else a crash in between would start it
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ptapi.conditions import ConditionType, Phase
from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.status import CapacityStatus, FailureStatus, PostTrainJobStatus
from ptkube import timestamps
from ptkube.resources import CONFIGMAPS, JOBSETS, POSTTRAINJOBS
from ptoperator.capacity import Decision, is_open, provide, uses_pools
from ptoperator.capacity.attempts import noted_pools, noted_ready
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube.actions import Action, Create, Delete, Patch
from ptoperator.observe.state import Observed
from ptoperator.plan.hang import hung
from ptoperator.plan.preflight import delete_preflight, preflight_first
from ptoperator.plan.provisioning import abandoned, chips_first, no_nodes
from ptoperator.plan.quota import chips_for_quota, chips_without_quota, in_vain, paused, unasked
from ptoperator.plan.restart_budget import hopeless, not_charged
from ptoperator.plan.step import Case, Step, delete_jobset
from ptoperator.plan.teardown import add_finalizer, given_back, leaving, told
from ptoperator.render import Layout, config_map, jobset, layout_of
from ptoperator.settings import Settings
from ptoperator.status import running_phases, terminal_phases
from ptoperator.status.builder import Situation, build, differs, is_only_progress, merged
from ptoperator.status.restart_counts import charged_restarts
from ptoperator.status.running_phases import accepted

_CLEANUP_POLL_S = 10.0
_REFUSED_POLL_S = 30.0


@dataclass(frozen=True)
class Plan:
    """status: what to write, None when nothing changed. requeue_after: seconds until the next look, None: only when
    something happens. progress_only: unless something is heard before, that look need only read progress.
    gives_turn: the status gives the job its turn in a line, so everybody's place in it must have been read just now."""

    actions: tuple[Action | CloudAction, ...] = ()
    status: PostTrainJobStatus | None = None
    requeue_after: float | None = None
    progress_only: bool = False
    gives_turn: bool = False


def plan(seen: Observed, settings: Settings) -> Plan:
    """What to do about one job now."""
    if seen.is_deleting:
        actions = leaving(seen, settings)  # owner references take everything else away
        return Plan(actions, _told(seen), settings.cloud_poll_seconds if seen.has_finalizer else None)
    if seen.status.phase.is_terminal:
        return _after_end(seen, settings)
    try:
        layout = layout_of(parse_job(seen.job), settings)
    except SpecError as error:
        return _report(seen, None, settings, Step(terminal_phases.invalid(error)))
    if uses_pools(seen.job) and settings.has_gke and not seen.has_finalizer:
        return Plan((add_finalizer(seen),), requeue_after=0.0)
    case = Case(seen, layout, settings)
    step = next(answer for answer in (guard(case) for guard in _STEPS) if answer is not None)
    return _report(seen, layout, settings, step)


def _rival(case: Case) -> Step | None:
    """Another job owns the run directory. Asked once, before anything is made."""
    if not case.seen.rival or case.seen.status.holds(ConditionType.VALIDATED):
        return None
    return Step(terminal_phases.output_conflict(case.layout, case.seen.rival))


def _finished(case: Case) -> Step | None:
    """The JobSet came to its end, or the trainer did and the JobSet is gone."""
    seen = case.seen
    if seen.jobset is not None and not seen.is_jobset_ours:
        return None
    if seen.jobset_condition("Completed"):
        return Step(terminal_phases.succeeded(case.layout, seen))
    failed = seen.jobset_condition("Failed")
    if failed:
        return not_charged(case, failed) or Step(terminal_phases.failed(case.layout, seen, failed))
    is_done = seen.progress is not None and seen.progress.stage == "done" and seen.progress.job_uid == seen.uid
    if seen.jobset is None and is_done:
        return Step(terminal_phases.succeeded(case.layout, seen))
    return None


def _suspended(case: Case) -> Step | None:
    """`suspend: true`: no pods, after they had time to save. A queued JobSet is deleted, for Kueue owns its suspend
    field; another is suspended. Deleted too if the job's queue changed meanwhile: the label cannot. Deleted too if
    its pods name node pools, for those are given back."""
    if not case.policy_suspend:
        return None
    seen = case.seen
    actions: tuple[Action | CloudAction, ...] = delete_preflight(seen)
    if seen.jobset is not None and seen.is_jobset_ours and not seen.is_jobset_deleting:
        if case.queue or seen.jobset_queue or uses_pools(seen.job):
            actions = (delete_jobset(seen),)
        elif not seen.is_jobset_suspended:
            actions = (_suspend_jobset(case, True),)
    back = given_back(seen, case.settings)
    situation = running_phases.suspended(case.layout, seen, has_chips=bool(back and back.status.node_pools))
    if back is None:
        return Step(situation, actions, _CLEANUP_POLL_S if seen.unfinished_pods else None)
    situation = replace(situation, capacity=back.status, says={**situation.says, **told(seen, back.status)})
    return Step(situation, (*actions, *back.actions), case.settings.cloud_poll_seconds)


def _overdue(case: Case) -> Step | None:
    """`activeDeadlineSeconds` passed while the job held nodes, counted anew after a suspension as Kubernetes does."""
    left = _deadline_left(case)
    if left is None or left > 0:
        return None
    return Step(terminal_phases.deadline_exceeded(case.layout, case.seen))


def _cannot_start(case: Case) -> Step | None:
    """A container cannot be started, and not since a moment ago."""
    for found in running_phases.start_failures(case.seen):
        age = timestamps.seconds_since(found.since, case.seen.now)
        if age is not None and age >= case.settings.start_failure_seconds:
            failure = FailureStatus(failure_class=found.kind, message=found.message, pod=found.pod)
            return Step(terminal_phases.ended(case.layout, failure))
    return None


def _in_the_way(case: Case) -> Step | None:
    """Things of before are still going away, or somebody else's JobSet has the name."""
    seen = case.seen
    if seen.jobset is not None and not (
        seen.is_jobset_ours or seen.is_jobset_deleting or running_phases.is_of_earlier(seen)
    ):
        return Step(running_phases.name_taken(case.layout, seen), requeue_after=_REFUSED_POLL_S)
    if seen.jobset is not None and (not seen.is_jobset_ours or seen.is_jobset_deleting):
        return Step(running_phases.cleaning_up(case.layout, seen), requeue_after=_CLEANUP_POLL_S)
    if seen.jobset is None and seen.unfinished_pods:
        return Step(running_phases.cleaning_up(case.layout, seen), requeue_after=_CLEANUP_POLL_S)
    return None


def _create(case: Case) -> Step | None:
    """Nothing is there: make it. The ConfigMap first, for the pods mount it."""
    if case.seen.jobset is not None:
        return None
    so_far = case.seen.status.capacity
    decision = Decision(True, so_far) if case.quota_first else provide(case.asked)
    layout = replace(case.layout, pools=decision.pools, is_booked=decision.is_booked)
    counts = case.seen.status.restarts
    actions = (
        *decision.actions,
        Create(CONFIGMAPS, config_map(layout)),
        Create(JOBSETS, jobset(layout, sum(counts.values()), charged_restarts(counts))),
    )
    if case.seen.obstacle:
        situation = replace(running_phases.refused(layout, case.seen), capacity=decision.status)
        return Step(situation, actions, _REFUSED_POLL_S)
    situation = replace(running_phases.created(layout, case.seen), capacity=decision.status)
    return Step(situation, actions, case.settings.resync_seconds)


def _follow(case: Case) -> Step:
    """The JobSet is there and alive: resume it if it was suspended, and say where it stands."""
    seen = case.seen
    actions: list[Action] = []
    if seen.config_map_missing:
        actions.append(Create(CONFIGMAPS, config_map(case.layout)))
    if seen.is_jobset_suspended and not seen.jobset_queue:
        actions.append(_suspend_jobset(case, False))
    situation = running_phases.following(case.layout, seen, case.settings.silent_start_seconds)
    capacity = noted_pools(seen.status.capacity, seen.jobset_pools)
    situation = replace(situation, capacity=noted_ready(capacity, seen.now) if case.has_nodes else capacity)
    only_progress = not actions and situation.phase is not Phase.QUEUED
    return Step(situation, tuple(actions), _next_look(case, situation), only_progress)


_STEPS: tuple[Callable[[Case], Step | None], ...] = (
    _rival, _finished, _suspended, _overdue, hopeless, _cannot_start, hung, unasked, in_vain, abandoned, no_nodes,
    _in_the_way, preflight_first, paused, chips_first, _create, chips_for_quota, chips_without_quota, _follow,
)  # fmt: skip


def _after_end(seen: Observed, settings: Settings) -> Plan:
    """A job that ended: free its chips, stop it if it did not end by itself, and delete it when its time has come."""
    actions: list[Action | CloudAction] = []
    is_over = seen.jobset_condition("Completed") or seen.jobset_condition("Failed")
    if seen.jobset is not None and seen.is_jobset_ours and not is_over and not seen.is_jobset_deleting:
        actions.append(delete_jobset(seen))
    back = given_back(seen, settings)
    status = _told(seen, back.status if back else seen.status.capacity)
    if back is not None:
        return Plan((*actions, *back.actions), status, settings.cloud_poll_seconds)
    policy = (seen.job.get("spec") or {}).get("runPolicy") or {}
    ttl, age = policy.get("ttlSecondsAfterFinished"), timestamps.seconds_since(seen.status.completion_time, seen.now)
    if not isinstance(ttl, int) or age is None:
        return Plan(tuple(actions), status)
    if age >= ttl:
        actions.append(Delete(POSTTRAINJOBS, seen.name, seen.namespace, seen.uid))
        status = None
    return Plan(tuple(actions), status, requeue_after=max(1.0, ttl - age))


def _told(seen: Observed, capacity: CapacityStatus | None = None) -> PostTrainJobStatus | None:
    """Of a job that is over or going, as far as it is news: its capacity, and whether GKE takes its pools back."""
    capacity = capacity or seen.status.capacity
    conditions = merged(seen.status.conditions, told(seen, capacity), seen.generation, seen.now)
    new = seen.status.model_copy(update={"conditions": conditions, "capacity": capacity})
    return new if differs(seen.status, new) else None


def _report(seen: Observed, layout: Layout | None, settings: Settings, step: Step) -> Plan:
    """The plan of a step: its status if that is news, and if it is not too soon for news of that kind."""
    situation = step.situation
    if layout is not None:
        situation = accepted(layout, settings, situation, seen)
    old, new = seen.status, build(seen, situation, layout)
    if new.phase.is_terminal:
        return Plan(step.actions, new, requeue_after=0.0)
    wait = _too_soon(seen, settings) if is_only_progress(old, new) else 0.0
    if wait and differs(old, new):
        return Plan(step.actions, None, min(wait, step.requeue_after or wait), step.progress_only)
    status = new if differs(old, new) else None
    return Plan(step.actions, status, step.requeue_after, step.progress_only, step.gives_turn)


def _too_soon(seen: Observed, settings: Settings) -> float:
    """Seconds until progress may be written again."""
    age = timestamps.seconds_since(seen.status.accounted_until, seen.now)
    return 0.0 if age is None else max(0.0, settings.progress_seconds - age)


def _next_look(case: Case, situation: Situation) -> float:
    """Soon while numbers move, at the deadline, when a failing start becomes a failure; else seldom."""
    looks = [case.settings.resync_seconds]
    if situation.phase in (Phase.STARTING, Phase.RUNNING, Phase.RESTARTING):
        looks.append(case.settings.progress_seconds)
    if situation.phase is Phase.QUEUED:  # who is ahead changes without a word to us
        looks.append(case.settings.queue_seconds)
    left = _deadline_left(case)
    if left is not None:
        looks.append(max(1.0, left))
    if is_open(case.seen.status.capacity) and not case.has_nodes:
        looks.append(case.settings.cloud_poll_seconds)
    if any(running_phases.start_failures(case.seen)):
        looks.append(case.settings.start_failure_seconds / 10)
    return min(looks)


def _deadline_left(case: Case) -> float | None:
    limit = case.layout.job.spec.run_policy.active_deadline_seconds
    status = case.seen.status
    if limit is None or status.start_time is None or case.seen.is_jobset_suspended:
        return None
    resumed = status.condition(ConditionType.SUSPENDED)
    since = max(status.start_time, resumed.last_transition_time if resumed else "")
    age = timestamps.seconds_since(since, case.seen.now)
    return None if age is None else limit - age


def _suspend_jobset(case: Case, suspend: bool) -> Patch:
    return Patch(JOBSETS, case.layout.jobset, case.seen.namespace, {"spec": {"suspend": suspend}})
