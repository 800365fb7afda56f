"""A finding, and what checks read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ptapi.accelerators import Slice
from ptctl.cluster.cloud.compute import Compute
from ptctl.cluster.cloud.gke import ClusterView
from ptctl.cluster.in_cluster.objects import GkeCluster
from ptctl.cluster.in_cluster.survey import Survey
from ptkube.client import Kube


class Severity(IntEnum):
    """How bad it is: an error keeps all jobs from running, a warning some of them, or later ones."""

    OK = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True)
class Finding:
    """The result of a check, and what to do about it."""

    check: str
    severity: Severity
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Google:
    """Google's side of the cluster, where it is one of GKE's and can be asked."""

    cluster: ClusterView
    gke: GkeCluster
    compute: Compute


@dataclass(frozen=True)
class CheckContext:
    """What checks read: a cluster, the namespace of jobs, and the chips that the user wants to use, if any."""

    kube: Kube
    survey: Survey
    namespace: str
    google: Google | None = None
    chips: Slice | None = None
    reservation: str = ""
    zone: str = ""


def ok(check: str, message: str) -> Finding:
    """Return a finding that needs nothing done."""
    return Finding(check, Severity.OK, message)


def warning(check: str, message: str, fix: str = "") -> Finding:
    """Return a finding that may keep some jobs from running."""
    return Finding(check, Severity.WARNING, message, fix)


def error(check: str, message: str, fix: str = "") -> Finding:
    """Return a finding that keeps jobs from running."""
    return Finding(check, Severity.ERROR, message, fix)
