"""What a guarded step of `plan` is given and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from ptkube.resources import JOBSETS
from ptoperator.capacity import Asked
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube.actions import Action, Delete, deletion
from ptoperator.observe.elastic_slices import has_nodes
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.settings import Settings
from ptoperator.status.builder import Situation


@dataclass(frozen=True)
class Case:
    """What every step gets."""

    seen: Observed
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
    def asked(self) -> Asked:
        seen = self.seen
        return Asked(self.layout, seen.status.capacity, seen.cloud, seen.now, seen.crowd, seen.booking, seen.obstacle)

    @property
    def has_nodes(self) -> bool:
        """Whether every pod that the run needs has a node."""
        return has_nodes(self.layout, self.seen)


@dataclass(frozen=True)
class Step:
    """What a step answers: what to do, where the job stands, when to look again. gives_turn: see `Plan`."""

    situation: Situation
    actions: tuple[Action | CloudAction, ...] = ()
    requeue_after: float | None = None
    progress_only: bool = False
    gives_turn: bool = False


def delete_jobset(seen: Observed) -> Delete:
    assert seen.jobset is not None
    return deletion(JOBSETS, seen.jobset, seen.namespace)
