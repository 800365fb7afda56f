"""`ptctl top`: which jobs use which chips and how well, who waits for more, what is free, and what it costs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ptapi.accelerators import resolve
from ptapi.accelerators.table import is_gpu_type
from ptapi.errors import SpecError
from ptctl.cluster.actions import gpu_use
from ptctl.cluster.actions.gpu_use import GpuUse
from ptctl.cluster.actions.usage import Row, pool_rows, queue_rows, text
from ptctl.jobs.columns import slice_label
from ptctl.jobs.lookup import namespace_of
from ptctl.jobs.view import JobView, part, view
from ptctl.planning import prices
from ptctl.planning.prices import Prices
from ptctl.ui.app import App, Target
from ptctl.ui.duration import age
from ptkube.client import Kube
from ptkube.errors import ApiError
from ptkube.objects import label
from ptkube.resources import PODS, POSTTRAINJOBS
from ptoperator.kube import labels

_RUNNING = ("Starting", "Running", "Restarting")
_REDRAW = "\x1b[H\x1b[2J"
_DROPPED_FIRST = (
    "chip-hours",
    "heartbeat",
    "goodput",
    "restarts",
    "slices",
    "stage",
    "accelerator",
    "cost",
    "tensor",
    "step",
    "mfu",
    "duty",
    "hbm GiB",
)
"""Columns that a narrow terminal leaves out, in this order."""


@dataclass(frozen=True)
class Use:
    """What is in use at one moment."""

    running: list[Row]
    waiting: list[Row]
    pools: list[Row]

    @property
    def chips(self) -> dict[str, int]:
        """Return how many chips there are on nodes, in use, free, and waited for."""
        total, used = (_sum(self.pools, key) for key in ("chips", "used"))
        return {"total": total, "used": used, "free": total - used, "waited for": _sum(self.waiting, "chips")}


def top(app: App, target: Target, every_s: float | None, prices_path: str | None, form: str | None) -> None:
    """Print the use of the cluster once, or again and again: on a terminal in place, as JSON a line each time."""
    known = prices.read(prices_path) if prices_path else None
    is_repeated = every_s is not None and (form == "json" or app.console.width is not None)
    while True:
        use = _use(app, target, known)
        if form == "json":
            app.console.data(json.dumps(_document(use), indent=None if is_repeated else 2))
        else:
            app.console.data((_REDRAW if is_repeated else "") + "\n".join(_lines(use, app.console.width)))
        if not is_repeated or every_s is None:
            return
        time.sleep(every_s)


def _use(app: App, target: Target, known: Prices | None) -> Use:
    kube = app.connect(target)
    manifests = kube.list(POSTTRAINJOBS, namespace_of(kube, target)).items
    running = sorted((job for job in map(view, manifests) if job.phase in _RUNNING), key=lambda job: -job.chips)
    now = datetime.now(UTC)
    gpus = _gpu_use(app, kube) if any(is_gpu_type(job.accelerator) for job in running) else {}
    rows = [_row(job, now, known, gpus.get(f"{job.namespace}/{job.name}")) for job in running]
    return Use(rows, queue_rows(manifests), pool_rows(kube))


def _gpu_use(app: App, kube: Kube) -> dict[str, GpuUse]:
    """Return how busy the GPUs of each job are; nothing, and a note, where no exporter answers."""
    try:
        read = gpu_use.read(kube)
    except ApiError as error:
        reason = str(error).partition("\n")[0]
        app.console.warn(f"how busy GPUs are is not shown: {reason}\nhint: it needs `get pods/proxy` in "
                         f"namespace {gpu_use.EXPORTER_NAMESPACE}")  # fmt: skip
        return {}
    jobs = {
        (pod["metadata"]["namespace"], pod["metadata"]["name"]): f"{pod['metadata']['namespace']}/{name}"
        for pod in (kube.list(PODS, labels=labels.JOB).items if read else [])
        if (name := label(pod, labels.JOB))
    }
    return gpu_use.by_job(read, jobs)


def _row(job: JobView, now: datetime, known: Prices | None, gpus: GpuUse | None) -> Row:
    metrics: Mapping[str, Any] = part(job.raw, "status", "metrics", missing={})
    cost: Mapping[str, Any] = part(job.raw, "status", "cost", missing={})
    slices: Mapping[str, Any] = part(job.raw, "status", "slices", missing={})
    generation, hbm_gib = _chip(job)
    used = metrics.get("hbmInUse") or (_share(gpus.memory_gib) if gpus else "")
    price = known.chip_hour.get(generation) if known else None
    return {
        "job": f"{job.namespace}/{job.name}",
        "phase": job.phase,
        "accelerator": slice_label(job),
        "chips": job.chips,
        "slices": f"{slices['training']} of {slices['total']}" if slices else "",
        "step": job.progress,
        "stage": job.stage,
        "hbm GiB": f"{used}/{hbm_gib:g}" if used and hbm_gib else used or "",
        "duty": metrics.get("dutyCycle") or (_share(gpus.duty) if gpus else ""),
        "tensor": _share(gpus.tensor) if gpus else "",
        "mfu": metrics.get("mfu") or "",
        "restarts": job.restarts or "",
        "goodput": part(job.raw, "status", "time", "goodput", missing=""),
        "heartbeat": age(part(job.raw, "status", "progress", "updated", missing=""), now),
        "chip-hours": cost.get("chipHours") or "",
        "cost": cost.get("amount") or "",
        **({f"{known.currency}/h": f"{price * job.chips:.2f}" if price else ""} if known else {}),
    }


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _chip(job: JobView) -> tuple[str, float | None]:
    """Return the generation, and the HBM in GiB of one device, which is what the trainer reports the use of."""
    try:
        slice_ = resolve(job.accelerator, part(job.raw, "spec", "accelerator", "topology", missing=None), job.slices)
    except SpecError:
        return "", None
    if slice_.chip is None:
        return "", None
    return slice_.generation, slice_.chip.hbm_gib / slice_.jax_devices_per_chip


def _document(use: Use) -> dict[str, object]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": now, "chips": use.chips, "running": use.running, "waiting": use.waiting, "pools": use.pools}


def _lines(use: Use, width: int | None) -> Iterator[str]:
    chips = use.chips
    total = f"{chips['used']} of {chips['total']} chips in use, {chips['free']} free"
    wanted = f" for {chips['waited for']} chips" if chips["waited for"] else ""
    yield total if chips["total"] else "no node has chips"
    yield f"jobs: {len(use.running)} on their chips, {len(use.waiting)} waiting{wanted}"
    for title, rows in (("Running", use.running), ("Waiting", use.waiting), ("Node pools", use.pools)):
        if rows:
            yield ""
            yield title
            yield text(_fitting(rows, width, _DROPPED_FIRST if rows is use.running else ()), width)


def _fitting(rows: list[Row], width: int | None, dropped_first: Sequence[str]) -> list[Row]:
    """Return the rows without empty columns, and without those for which the terminal is too narrow."""
    filled = [key for key in rows[0] if any(row[key] for row in rows)]
    for key in (None, *dropped_first):
        filled = [each for each in filled if each != key]
        shown = [{each: row[each] for each in filled} for row in rows]
        if width is None or max(map(len, text(shown, None).splitlines())) <= width:
            break
    return shown


def _sum(rows: Sequence[Row], key: str) -> int:
    return sum(value for row in rows if isinstance(value := row[key], int))
