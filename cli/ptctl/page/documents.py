"""What the page is sent of a job: a row of the list, and everything about one job. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ptapi.failures import REACTIONS, FailureClass
from ptctl.jobs.columns import slice_label
from ptctl.jobs.view import JobView, part
from ptctl.runs.history.job_timeline import entries
from ptctl.ui.duration import age
from ptctl.ui.output import to_yaml
from ptkube import timestamps
from ptkube.resources import Manifest

Document = dict[str, Any]
_OWNER_LABELS = ("owner", "user", "team")
"""Labels that tell whose a job is, without their prefix, the first that is there; Kubernetes itself keeps no owner."""


def row(identity: str, job: JobView, now: datetime) -> Document:
    """Return a job as a row of the list."""
    return {
        "id": identity,
        "name": job.name,
        "namespace": job.namespace,
        "owner": owner(job),
        "phase": "Deleting" if job.deleting else job.phase,
        "algorithm": job.algorithm,
        "model": part(job.raw, "spec", "model", "uri", missing=""),
        "accelerator": slice_label(job),
        "chips": job.chips,
        "step": job.step,
        "total": job.total,
        "eta": "" if job.is_terminal else job.eta,
        "loss": job.loss,
        "reward": job.reward,
        "restarts": job.restarts,
        "queue": job.queue,
        "chipHours": part(job.raw, "status", "cost", "chipHours", missing=""),
        "amount": part(job.raw, "status", "cost", "amount", missing=""),
        "created": job.created or part(job.raw, "status", "startTime", missing=""),
        "failure": part(job.raw, "status", "failure", "failureClass", missing=""),
    }


def owner(job: JobView) -> str:
    """Return whose the job is, by its labels; empty if none says so."""
    labels = {key.rpartition("/")[2]: str(value) for key, value in (job.raw["metadata"].get("labels") or {}).items()}
    return next((labels[key] for key in _OWNER_LABELS if labels.get(key)), "")


def details(identity: str, job: JobView, events: Sequence[Manifest], now: datetime) -> Document:
    """Return everything about a job that its status and events tell."""
    status = job.raw.get("status") or {}
    return {
        **row(identity, job, now),
        "age": age(job.created, now),
        "live": not job.is_terminal,
        "stage": "" if job.is_terminal else job.stage,
        "labels": job.raw["metadata"].get("labels") or {},
        "run": job.run_uri,
        "progress": status.get("progress") or {},
        "metrics": status.get("metrics") or {},
        "conditions": status.get("conditions") or [],
        "failure": _failure(status.get("failure")),
        "restartsByClass": status.get("restarts") or {},
        "timeline": list(_timeline(job, events, now)),
        "time": status.get("time") or {},
        "cost": status.get("cost") or {},
        "capacity": status.get("capacity") or {},
        "preflight": status.get("preflight"),
        "checkpoint": status.get("checkpoint"),
        "links": status.get("links") or {},
        "spec": to_yaml(job.raw.get("spec") or {}),
    }


def _failure(failure: Manifest | None) -> Document | None:
    """Return the newest failure, its hint apart from its message, and what the operator does about its class."""
    if not failure:
        return None
    message, _, hint = str(failure.get("message") or "").partition("hint: ")
    kind = str(failure.get("failureClass") or "")
    return {**failure, "message": message.rstrip(" ;\n"), "hint": hint, "reaction": _reaction(kind)}


def _reaction(kind: str) -> str:
    if kind not in FailureClass.__members__.values():
        return ""
    reaction = REACTIONS[FailureClass(kind)]
    if not reaction.retried:
        return "The same job would fail again: it is not restarted."
    times = f" at most {reaction.limit} times" if reaction.limit else ""
    budget = "counts" if reaction.charged else "does not count"
    return f"The run is restarted{times}; this {budget} against runPolicy.maxRestarts."


def _timeline(job: JobView, events: Sequence[Manifest], now: datetime) -> Iterator[Document]:
    for entry in entries(job, events, now):
        yield {
            "kind": entry.kind,
            "began": timestamps.to_text(entry.start),
            "ended": None if entry.end is None else timestamps.to_text(entry.end),
            "seconds": entry.seconds,
            "text": entry.text,
        }
