"""The demo's jobs in the cluster: which of them are its own, and how they end.

A trainer has minutes to save a checkpoint, and Python hears no signal while XLA compiles. Nobody wants the checkpoint
of a demo that is over, so its pods get two seconds.
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

_GONE_S = 60.0
_HURRY_S = 2
_LOOK_EVERY_S = 0.5


def own_jobs(kube: Kube) -> list[str]:
    """Names of the demo's jobs that are there."""
    return [name for name in (SFT, GRPO) if _is_own(_find(kube, name))]


def refuse_foreign_jobs(kube: Kube) -> None:
    """A job of the same name that is not the demo's is left alone, so the demo cannot run."""
    for name in (SFT, GRPO):
        job = _find(kube, name)
        if job is not None and not _is_own(job):
            raise CliError(f"job {name!r} exists in namespace {NAMESPACE!r} and is not the demo's", "delete it first")


def end_jobs(kube: Kube, names: Iterable[str]) -> None:
    """Delete them; return when neither they nor their pods are there."""
    left = list(names)
    for name in left:
        with suppress(NotFound):
            kube.delete(POSTTRAINJOBS, name, NAMESPACE, propagation="Foreground")
    until = time.monotonic() + _GONE_S
    while left := [name for name in left if _is_there(kube, name)]:
        if time.monotonic() > until:
            hint = "`ptctl workload describe NAME` shows what it waits for"
            raise TimedOutError(f"not gone after {_GONE_S:g} s: {', '.join(left)}", hint)
        time.sleep(_LOOK_EVERY_S)


def _is_there(kube: Kube, name: str) -> bool:
    """The job, or pods of it, which are told to hurry."""
    pods = kube.list(PODS, NAMESPACE, labels=selector(name)).items
    for pod in pods:
        with suppress(NotFound):
            kube.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace_s=_HURRY_S)
    return bool(pods) or _find(kube, name) is not None


def _find(kube: Kube, name: str) -> Manifest | None:
    try:
        return kube.get(POSTTRAINJOBS, name, NAMESPACE)
    except NotFound:
        return None


def _is_own(job: Manifest | None) -> bool:
    return job is not None and LABEL in (job["metadata"].get("labels") or {})
