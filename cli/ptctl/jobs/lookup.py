"""Find jobs in a cluster: by name, or by -A, -l and XPK's filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptctl.errors import MissingError
from ptctl.jobs.view import JobView, view
from ptctl.ui.app import Target
from ptctl.ui.command_line.choices import STATUS_PHASES
from ptkube.errors import NotFound
from ptkube.resources import POSTTRAINJOBS, Manifest

if TYPE_CHECKING:
    from ptkube.client import Kube


@dataclass(frozen=True)
class Filter:
    """The jobs that a verb acts on; an empty field matches all."""

    labels: str | None = None
    text: str | None = None
    status: str | None = None
    names: tuple[str, ...] = ()

    def matches(self, job: JobView) -> bool:
        """Return True if the job passes every filter but `labels`, which the API server applies."""
        phases = STATUS_PHASES.get((self.status or "").upper())
        return (
            (self.text or "") in job.name
            and (phases is None or job.phase in phases)
            and (not self.names or job.name in self.names)
        )


def namespace_of(kube: Kube, target: Target) -> str | None:
    """Return the namespace to query; None means all namespaces."""
    return None if target.everywhere else target.namespace or kube.namespace


def fetch(kube: Kube, target: Target, name: str) -> Manifest:
    """Return the named job. Raises MissingError with a hint that names similar jobs."""
    namespace = namespace_of(kube, target) or kube.namespace
    try:
        return kube.get(POSTTRAINJOBS, name, namespace)
    except NotFound as error:
        if "not find the requested resource" in str(error):
            raise
        message = f"job {name!r} does not exist in namespace {namespace!r}"
        raise MissingError(message, _hint(kube, target, name)) from error


def _hint(kube: Kube, target: Target, name: str) -> str:
    from difflib import get_close_matches

    everywhere = [view(job) for job in kube.list(POSTTRAINJOBS, None).items]
    elsewhere = [job.namespace for job in everywhere if job.name == name]
    if elsewhere:
        return f"it exists in namespace {elsewhere[0]!r}: add -n {elsewhere[0]}"
    here = [job.name for job in everywhere if job.namespace == namespace_of(kube, target)]
    similar = get_close_matches(name, here, 3, 0.5)
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    return "`ptctl workload list` shows the jobs that exist" if here else "there are no jobs in this namespace"
