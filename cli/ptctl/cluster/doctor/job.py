"""Explain one job: what it waits for, what was tried, what comes next. Pure, from its status alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from ptapi.failures import REACTIONS, FailureClass
from ptctl.jobs.view import JobView, part
from ptctl.ui.duration import age, short
from ptkube import timestamps
from ptkube.resources import Manifest

_ORDER = ("Validated", "Staged", "Preflighted", "QuotaReserved", "CapacityReady", "Running")
"""Conditions in the order in which a job meets them."""
_CLAIM_S = 10.0


def explanation(job: JobView, now: datetime) -> list[tuple[str, str]]:
    """Return (label, text) pairs: state, what it waits for, what was tried, what comes next."""
    return [("Phase", f"{job.phase or 'none'}{' (being deleted)' if job.deleting else ''}"), *_waits(job, now),
            *_tried(job, now), *_next(job, now)]  # fmt: skip


def _waits(job: JobView, now: datetime) -> Iterator[tuple[str, str]]:
    if not job.raw.get("status"):
        since = timestamps.seconds_since(job.created, now)
        late = since is not None and since > _CLAIM_S
        yield (
            "Waits for",
            "an operator: none has handled it yet" if late else "the operator, which answers soon",
        )
        return
    unmet = next((c for c in map(job.condition, _ORDER) if c and c["status"] != "True"), None)
    if job.is_terminal or job.phase == "Suspended" or unmet is None:
        return
    began = age(str(unmet.get("lastTransitionTime") or ""), now)
    yield "Waits for", f"{unmet['type']} ({unmet['reason']}, {began}): {unmet.get('message') or 'no message'}"


def _tried(job: JobView, now: datetime) -> Iterator[tuple[str, str]]:
    for attempt in part(job.raw, "status", "capacity", "attempts", missing=[]):
        began = age(str(attempt.get("started") or ""), now)
        yield "Tried", f"{attempt['option']}, {began} ago: {attempt.get('outcome') or 'in progress'}"
    restarts = {kind: count for kind, count in part(job.raw, "status", "restarts", missing={}).items() if count}
    if restarts:
        yield "Restarted", ", ".join(f"{count} x {kind}" for kind, count in restarts.items())
    failure = part(job.raw, "status", "failure", missing={})
    if failure:
        yield "Failed", f"{failure.get('failureClass')}: {failure.get('message') or 'no message'}"


def _next(job: JobView, now: datetime) -> Iterator[tuple[str, str]]:
    match job.phase:
        case "Succeeded":
            yield "Next", "nothing: the run is done"
        case "Failed":
            yield "Next", _after_failure(job)
        case "Suspended":
            yield "Next", f"nothing until `ptctl workload resume {job.name}`"
        case "Queued" | "Provisioning":
            yield "Next", _after_wait(job, now)
        case "Restarting":
            yield "Next", "it continues from its newest checkpoint"
        case "Running" | "Starting":
            yield "Next", f"step {job.step} of {job.total}{f', about {job.eta} left' if job.eta else ''}"
        case _:
            yield "Next", "the operator continues by itself; `ptctl cluster doctor` examines the cluster"


def _after_failure(job: JobView) -> str:
    kind = str(part(job.raw, "status", "failure", "failureClass", missing=""))
    again = f"then `ptctl workload retry {job.name}`"
    if kind in set(FailureClass) and not REACTIONS[FailureClass(kind)].retried:
        return f"nothing by itself: the same job would fail again; fix the cause, {again}"
    return f"nothing by itself: its restarts are used up; `ptctl workload logs {job.name}`, {again}"


def _after_wait(job: JobView, now: datetime) -> str:
    capacity: Manifest = part(job.raw, "status", "capacity", missing={})
    retry = timestamps.from_text(str(capacity.get("retryAfter") or ""))
    if retry is not None and retry > now:
        return f"`capacity` is tried from its beginning in {short((retry - now).total_seconds())}"
    options: list[Manifest] = part(job.raw, "spec", "capacity", missing=[])
    attempts: list[Manifest] = capacity.get("attempts") or []
    current = str(attempts[-1]["option"]).split()[0] if attempts else ""
    kinds = [str(each.get("type")) for each in options]
    if current in kinds[:-1]:
        following = kinds[kinds.index(current) + 1]
        return f"{following}, when {current} is refused or not there in time"
    if kinds:
        return (
            f"{current or kinds[-1]} is waited for as long as it takes" if len(kinds) == 1 else "the list starts over"
        )
    return "it starts when chips are free; `ptctl cluster doctor` examines the cluster"
