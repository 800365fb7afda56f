"""A job that has ended: its chips and pods are given back, and it is deleted when its TTL is over."""

from ptapi.status import CapacityStatus, PostTrainJobStatus
from ptkube import timestamps
from ptkube.resources import POSTTRAINJOBS
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube.actions import Action, Delete
from ptoperator.observe.state import Observed
from ptoperator.plan.step_result import Plan, delete_jobset
from ptoperator.plan.teardown import release_capacity, release_conditions
from ptoperator.settings import Settings
from ptoperator.status.builder import differs, merge_conditions


def plan_finished(state: Observed, settings: Settings) -> Plan:
    """Release a finished job's chips, stop its pods, and delete it when its TTL is over."""
    actions: list[Action | CloudAction] = []
    is_over = state.jobset_condition("Completed") or state.jobset_condition("Failed")
    if state.jobset is not None and state.is_jobset_ours and not is_over and not state.is_jobset_deleting:
        actions.append(delete_jobset(state))
    release = release_capacity(state, settings)
    status = finished_status(state, release.status if release else state.status.capacity)
    if release is not None:
        return Plan((*actions, *release.actions), status, settings.cloud_poll_seconds)
    ttl, age = state.job.ttl_seconds, timestamps.seconds_since(state.status.completion_time, state.now)
    if ttl is None or age is None:
        return Plan(tuple(actions), status)
    if age >= ttl:
        actions.append(Delete(POSTTRAINJOBS, state.job.name, state.job.namespace, state.job.uid))
        status = None
    return Plan(tuple(actions), status, requeue_after=max(1.0, ttl - age))


def finished_status(state: Observed, capacity: CapacityStatus | None = None) -> PostTrainJobStatus | None:
    """Return the status of a finished or deleting job with its capacity and release, or None if unchanged."""
    capacity = capacity or state.status.capacity
    conditions = merge_conditions(
        state.status.conditions, release_conditions(state, capacity), state.job.generation, state.now
    )
    new = state.status.model_copy(update={"conditions": conditions, "capacity": capacity})
    return new if differs(state.status, new) else None
