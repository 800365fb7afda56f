"""What must be read from the API server before a plan is carried out. Pure.

A plan is made from local copies, which may be late. Where an old state would do harm the named kinds are read, and the
plan is made anew: before chips are taken or given back, before pods are started or stopped, before a job is ended. A
write of the job's status, or of its finalizer, needs no read of the job, because it names the version it is about. A
status that says what was so a moment ago is mended by the next event.
"""

from ptkube.resources import JOBSETS, PODS, POSTTRAINJOBS, Resource
from ptoperator.capacity.cloud import ClaimPool, CloudAction, CreatePool, DeletePool, ReleasePool
from ptoperator.kube.actions import Action, Create, Patch
from ptoperator.observe.state import Observed
from ptoperator.observe.watch_caches import WATCHED
from ptoperator.plan.step_result import Plan

_ALL = frozenset(WATCHED)


def kinds_to_read(state: Observed, planned: Plan) -> frozenset[Resource]:
    """Return the kinds that this plan may not know from a local copy."""
    is_end = planned.status is not None and planned.status.phase.is_terminal and not state.status.phase.is_terminal
    ending = frozenset({JOBSETS, PODS} if is_end else ())
    return ending.union(*(_kinds(state, action) for action in planned.actions))


def _kinds(state: Observed, action: Action | CloudAction) -> frozenset[Resource]:
    match action:
        case DeletePool() | ReleasePool() if _is_done(state):
            return frozenset()
        case CreatePool() | ClaimPool():  # for a job that still wants chips, and has quota where Kueue keeps its JobSet
            return frozenset({POSTTRAINJOBS, JOBSETS} if state.jobset else {POSTTRAINJOBS})
        case Create():  # the name exists once; two attempts may not write one run directory
            return frozenset({POSTTRAINJOBS, PODS})
        case Patch(resource=resource) if resource is POSTTRAINJOBS and not state.job.is_deleting:
            return frozenset()  # adds the finalizer, at the version that was read
        case _:
            return _ALL


def _is_done(state: Observed) -> bool:
    """Return True if the job has succeeded, which no copy can be wrong about: all its pods have ended for good."""
    return state.status.phase.is_terminal and state.is_jobset_ours and bool(state.jobset_condition("Completed"))
