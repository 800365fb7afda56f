"""The demo's jobs in the cluster: which of them are its own, and how they are deleted.

A trainer has minutes to save a checkpoint, and Python handles no signal while XLA compiles. A finished demo needs no
checkpoint, so its pods get two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ptctl.demo.paths import GRPO, LABEL, NAMESPACE, SFT
from ptctl.errors import CliError, TimedOutError
from ptkube.errors import NotFound
from ptkube.resources import PODS, POSTTRAINJOBS, Manifest
from ptoperator.kube.labels import selector

if TYPE_CHECKING:
    from ptkube.client import Kube

_DELETE_TIMEOUT_S = 60.0
_GRACE_S = 2
_POLL_S = 0.5


def own_jobs(kube: Kube) -> list[str]:
    """Return the names of the demo's jobs that exist."""
    return [name for name in (SFT, GRPO) if _is_own(_get_job(kube, name))]


def refuse_foreign_jobs(kube: Kube) -> None:
    """Raise CliError if another job has a name of the demo's; the demo never touches such a job."""
    for name in (SFT, GRPO):
        job = _get_job(kube, name)
        if job is not None and not _is_own(job):
            raise CliError(f"job {name!r} exists in namespace {NAMESPACE!r} and is not the demo's", "delete it first")


def end_jobs(kube: Kube, names: Iterable[str]) -> None:
    """Delete the jobs; return when neither they nor their pods exist. Raises TimedOutError."""
    remaining = list(names)
    for name in remaining:
        with suppress(NotFound):
            kube.delete(POSTTRAINJOBS, name, NAMESPACE, propagation="Foreground")
    deadline = time.monotonic() + _DELETE_TIMEOUT_S
    while remaining := [name for name in remaining if _delete_pods_and_check(kube, name)]:
        if time.monotonic() > deadline:
            hint = "`ptctl workload describe NAME` shows what is blocking it"
            raise TimedOutError(f"still not deleted after {_DELETE_TIMEOUT_S:g} s: {', '.join(remaining)}", hint)
        time.sleep(_POLL_S)


def _delete_pods_and_check(kube: Kube, name: str) -> bool:
    """Return True if the job or pods of it exist; delete those pods with a short grace period."""
    pods = kube.list(PODS, NAMESPACE, labels=selector(name)).items
    for pod in pods:
        with suppress(NotFound):
            kube.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace_s=_GRACE_S)
    return bool(pods) or _get_job(kube, name) is not None


def _get_job(kube: Kube, name: str) -> Manifest | None:
    try:
        return kube.get(POSTTRAINJOBS, name, NAMESPACE)
    except NotFound:
        return None


def _is_own(job: Manifest | None) -> bool:
    return job is not None and LABEL in (job["metadata"].get("labels") or {})
