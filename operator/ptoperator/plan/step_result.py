"""The values of `plan`: what a guarded step is given, what it answers, and the plan that comes of it."""

from dataclasses import dataclass

from ptapi.status import PostTrainJobStatus
from ptkube.resources import JOBSETS
from ptoperator.capacity import CapacityRequest
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube.actions import Action, Delete, Patch, deletion
from ptoperator.observe.elastic_slices import has_nodes
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.settings import Settings
from ptoperator.status.builder import StatusUpdate

CLEANUP_POLL_S = 10.0


@dataclass(frozen=True)
class Plan:
    """What to do, and when to reconcile next.

    status: what to write, None if nothing changed. requeue_after: seconds until the next reconcile, None: only on an
    event. progress_only: unless an event arrives, that reconcile reads only progress. gives_turn: the status gives the
    job its turn in a queue, so all positions must have been read just now. optional: actions on objects without which
    the job runs as well, so that a refusal holds up nothing.
    """

    actions: tuple[Action | CloudAction, ...] = ()
    status: PostTrainJobStatus | None = None
    requeue_after: float | None = None
    progress_only: bool = False
    gives_turn: bool = False
    optional: tuple[Action, ...] = ()


@dataclass(frozen=True)
class PlanContext:
    """The input of every step."""

    state: Observed
    layout: Layout
    settings: Settings

    @property
    def policy_suspend(self) -> bool:
        """Return `runPolicy.suspend`."""
        return self.layout.job.spec.run_policy.suspend

    @property
    def queue(self) -> str | None:
        """Return the job's Kueue queue, or None."""
        return self.layout.job.spec.queue

    @property
    def quota_first(self) -> bool:
        """Return True if Kueue's quota comes before the job's node pools."""
        return self.layout.quota_first

    @property
    def capacity_request(self) -> CapacityRequest:
        """Return the input of `capacity.provide`."""
        state = self.state
        return CapacityRequest(
            self.layout,
            state.status.capacity,
            state.cloud,
            state.now,
            state.competing,
            state.provisioning,
            state.rejection,
        )

    @property
    def has_nodes(self) -> bool:
        """Return True if every pod that the run needs has a node."""
        return has_nodes(self.layout, self.state)


@dataclass(frozen=True)
class StepResult:
    """What to do, the status update, and when to reconcile next. gives_turn: see `Plan`."""

    update: StatusUpdate
    actions: tuple[Action | CloudAction, ...] = ()
    requeue_after: float | None = None
    progress_only: bool = False
    gives_turn: bool = False


def delete_jobset(state: Observed) -> Delete:
    """Return the deletion of the observed JobSet."""
    assert state.jobset is not None
    return deletion(JOBSETS, state.jobset, state.job.namespace)


def suspend_jobset(context: PlanContext, suspend: bool) -> Patch:
    """Return the patch that suspends or resumes the JobSet."""
    return Patch(JOBSETS, context.layout.jobset, context.state.job.namespace, {"spec": {"suspend": suspend}})
