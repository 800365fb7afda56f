"""What a guarded step of `plan` is given and what it answers."""

from __future__ import annotations

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
    """What every step gets."""

    state: Observed
    layout: Layout
    settings: Settings

    @property
    def policy_suspend(self) -> bool:
        return self.layout.job.spec.run_policy.suspend

    @property
    def queue(self) -> str | None:
        return self.layout.job.spec.queue

    @property
    def quota_first(self) -> bool:
        return self.layout.quota_first

    @property
    def capacity_request(self) -> CapacityRequest:
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
        """Whether every pod that the run needs has a node."""
        return has_nodes(self.layout, self.state)


@dataclass(frozen=True)
class StepResult:
    """What a step answers: what to do, where the job stands, when to look again. gives_turn: see `Plan`."""

    update: StatusUpdate
    actions: tuple[Action | CloudAction, ...] = ()
    requeue_after: float | None = None
    progress_only: bool = False
    gives_turn: bool = False


def delete_jobset(state: Observed) -> Delete:
    assert state.jobset is not None
    return deletion(JOBSETS, state.jobset, state.namespace)
