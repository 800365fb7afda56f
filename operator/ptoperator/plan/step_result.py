"""The input and output of a guarded step of `plan`."""

from dataclasses import dataclass

from ptkube.resources import JOBSETS
from ptoperator.capacity import CapacityRequest
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube.actions import Action, Delete, deletion
from ptoperator.observe.elastic_slices import has_nodes
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.settings import Settings
from ptoperator.status.builder import StatusUpdate


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
