"""The parts of an observation that belong together: the run's documents, objects of preflight and of servers."""

from dataclasses import dataclass
from datetime import datetime

from ptapi.run_directory import Heartbeat, Progress, Termination
from ptkube.resources import Manifest, Resource


@dataclass(frozen=True)
class RunDocuments:
    """The documents of the run directory, if readable.

    progress_since: when this operator first saw that progress. heartbeats: only those of a silent run. other_owner: the
    job that owns the run directory, if it is another one.
    """

    progress: Progress | None = None
    progress_since: datetime | None = None
    termination: Termination | None = None
    heartbeats: tuple[Heartbeat, ...] = ()
    other_owner: str = ""


@dataclass(frozen=True)
class Estimate:
    """The result of preflight's formula. message: `peak 29.8 of 95.7 GiB per chip on v5p-128 (64 chips)`."""

    fits: bool
    message: str


@dataclass(frozen=True)
class StagingObjects:
    """What stages the model before the job has chips, until that is done."""

    job: Manifest | None = None
    pods: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class PreflightObjects:
    """What compiles the job before it has chips, until that is decided.

    estimate: of a job that skips preflight, until it has a Preflighted condition.
    """

    job: Manifest | None = None
    pods: tuple[Manifest, ...] = ()
    estimate: Estimate | None = None


@dataclass(frozen=True)
class ServerObjects:
    """What serves a model. missing: what is wanted and not there; deployment: None for a missing one."""

    missing: tuple[tuple[Resource, Manifest], ...] = ()
    deployment: Manifest | None = None


@dataclass(frozen=True)
class SandboxClaims:
    """The claims of a run's sandboxes. refusal: why there can be none; empty where Agent Sandbox is served."""

    items: tuple[Manifest, ...] = ()
    refusal: str = ""

    @property
    def is_served(self) -> bool:
        """Return True if claims can be made."""
        return not self.refusal


@dataclass(frozen=True)
class TensorBoardObjects:
    """The objects of a shared TensorBoard, None for a missing one. route: its Ingress or HTTPRoute."""

    deployment: Manifest | None = None
    service: Manifest | None = None
    route: Manifest | None = None
