"""Describe a job as a page of text. Pure: the job, its pods and its events in, text out."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from ptapi.text.terminal import printable
from ptctl.jobs.columns import slice_label
from ptctl.jobs.view import JobView, part
from ptctl.runs.history.event_table import job_event_rows
from ptctl.runs.logs.ranks import Rank, ranks
from ptctl.runs.metric_table import number
from ptctl.ui.duration import age, short
from ptctl.ui.table import table_or_records
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.kube.names import SAMPLER

_NEWEST_EVENTS = 20
_CLAIM_S = 10.0
"""An operator that serves a job's namespace writes its status within a second."""
_LABEL_WIDTH = 16
_INDENT = 2
_SAMPLE_LENGTH = 600
_LOG_LINES = 12
_LINKS = (("logs", "Logs"), ("cloudLogs", "Cloud Logging"), ("tensorboard", "TensorBoard"), ("console", "Console"))
_METRICS = (
    ("loss", "Loss"),
    ("reward", "Reward"),
    ("kl", "KL"),
    ("entropy", "Entropy"),
    ("completionLength", "Completion"),
    ("staleness", "Staleness"),
    ("evalLoss", "Held-out loss"),
    ("evalReward", "Held-out reward"),
    ("tokensPerSecondPerChip", "Tokens/s/chip"),
    ("mfu", "MFU"),
    ("hbmInUse", "HBM"),
    ("dutyCycle", "duty cycle"),
)


def describe_job(
    job: JobView,
    pods: Sequence[Manifest],
    events: Sequence[Manifest],
    sample: tuple[int, Manifest] | None,
    now: datetime,
    width: int | None,
) -> str:
    """Return everything about a job as text; tables where `width` has room for them (None: always)."""
    room = None if width is None else width - _INDENT
    sections = (
        _head(job, now),
        _progress(job, now),
        _failure(job, now),
        _conditions(job, now, room),
        _capacity(job, now, room),
        _time(job),
        _pods(job, pods, room),
        _events(job, events, now, room),
        _sample(sample),
        _links(job),
    )
    return "\n\n".join("\n".join(lines) for lines in (list(section) for section in sections) if lines)


def _pair(label: str, value: object) -> Iterator[str]:
    if value not in ("", None):
        yield f"{label + ':':<{_LABEL_WIDTH}} {value}"


def _head(job: JobView, now: datetime) -> Iterator[str]:
    spec, meta = job.raw.get("spec") or {}, job.raw["metadata"]
    yield from _pair("Name", job.name)
    yield from _pair("Namespace", job.namespace)
    for label, key in (("Labels", "labels"), ("Annotations", "annotations")):
        own = {k: v for k, v in (meta.get(key) or {}).items() if not k.startswith("kubectl.kubernetes.io/")}
        yield from _pair(label, ", ".join(f"{k}={v}" for k, v in own.items()))
    yield from _pair("Created", f"{job.created} ({age(job.created, now)} ago)" if job.created else "")
    yield from _pair("Phase", f"{job.phase} (being deleted)" if job.deleting else job.phase)
    since = timestamps.seconds_since(job.created, now) if job.created else None
    if not job.raw.get("status") and since is not None and since > _CLAIM_S:
        yield from _pair(
            "Operator", f"none has handled the job yet; hint: does one run, and serve namespace {job.namespace}?"
        )
    yield from _pair("Algorithm", job.algorithm)
    function = part(spec, "runtime", "function", missing=None)
    if function is not None:
        yield from _pair("Function", part(function, "function", missing=""))
    else:
        yield from _pair("Model", part(spec, "model", "uri", missing=""))
        yield from _pair("Data", part(spec, "data", "train", "uri", missing=""))
    chips = f" ({job.chips} chips)" if job.chips and not job.accelerator.startswith("cpu-") else ""
    yield from _pair("Accelerator", f"{slice_label(job)}{chips}")
    yield from _pair("Queue", job.queue)
    yield from _pair("JobSet", job.job_set)


def _progress(job: JobView, now: datetime) -> Iterator[str]:
    status = job.raw.get("status") or {}
    progress = status.get("progress") or {}
    if job.total:
        yield from _pair("Step", f"{job.step} of {job.total} ({progress.get('percent') or 0}%)")
    yield from _pair("Stage", "" if job.is_terminal else job.stage)
    seconds = progress.get("secondsPerStep")
    yield from _pair("Step time", f"{seconds:.3g} s" if isinstance(seconds, (int, float)) else "")
    yield from _pair("Time left", "" if job.is_terminal else job.eta)
    heartbeat_age = age(str(progress.get("updated") or ""), now)
    yield from _pair("Heartbeat", f"{heartbeat_age} ago" if heartbeat_age and not job.is_terminal else "")
    for key, label in _METRICS:
        yield from _pair(label, part(status, "metrics", key, missing=""))
    checkpoint = status.get("checkpoint") or {}
    if checkpoint:
        when = age(str(checkpoint.get("time") or ""), now)
        yield from _pair("Checkpoint", f"step {checkpoint.get('step')}, {when} ago, {checkpoint.get('uri')}")
    counts = {kind: count for kind, count in (status.get("restarts") or {}).items() if count}
    slices = status.get("slices") or {}
    in_place = sum((slices.get("restarts") or {}).values())
    yield from _pair("Slices", f"{slices.get('training')} of {slices.get('total')} train" if slices else "")
    listed = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    yield from _pair("Restarts", f"{listed} ({in_place} in place)" if in_place else listed)


def _failure(job: JobView, now: datetime) -> Iterator[str]:
    failure = part(job.raw, "status", "failure", missing={})
    if failure:
        yield "Newest failure:"
        yield f"  {failure.get('failureClass')}: {failure.get('message') or ''}"
        code = failure.get("exitCode")
        facts = (
            f"exit code {code}" if code is not None else "",
            f"pod {failure['pod']}" if failure.get("pod") else "",
            f"node {failure['node']}" if failure.get("node") else "",
            f"{age(failure['time'], now)} ago" if failure.get("time") else "",
        )
        yield f"  {', '.join(filter(None, facts))}".rstrip()
        tail = str(failure.get("log") or "").splitlines()[-_LOG_LINES:]
        yield from (f"  | {printable(line)}" for line in tail)


def _conditions(job: JobView, now: datetime, room: int | None) -> Iterator[str]:
    conditions = part(job.raw, "status", "conditions", missing=[])
    if conditions:
        yield "Conditions:"
        rows = [
            (c["type"], c["status"], c["reason"], age(c["lastTransitionTime"], now), c.get("message", ""))
            for c in conditions
        ]
        yield from _indented(table_or_records(("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"), rows, room))


def _capacity(job: JobView, now: datetime, room: int | None) -> Iterator[str]:
    attempts = part(job.raw, "status", "capacity", "attempts", missing=[])
    if attempts:
        yield "Capacity attempts:"
        rows = [(a["option"], age(a.get("started", ""), now), a.get("outcome") or "in progress") for a in attempts]
        yield from _indented(table_or_records(("OPTION", "STARTED", "OUTCOME"), rows, room))


def _time(job: JobView) -> Iterator[str]:
    times = part(job.raw, "status", "time", missing={})
    spent = [
        f"{kind} {short(times[kind])}"
        for kind in ("queueing", "provisioning", "restoring", "compiling", "training")
        if times.get(kind)
    ]
    yield from _pair("Time spent", ", ".join(spent))
    parts = (("repeated", "repeated"), ("on fewer slices", "fewerSlices"))
    yield from _pair("Of training", ", ".join(f"{name} {short(times[key])}" for name, key in parts if times.get(key)))
    yield from _pair("Goodput", times.get("goodput"))
    cost = part(job.raw, "status", "cost", missing={})
    yield from _pair("Chip-hours", cost.get("chipHours"))
    yield from _pair("Cost", cost.get("amount"))


def _pods(job: JobView, pods: Sequence[Manifest], room: int | None) -> Iterator[str]:
    yield from _ranks_table("Pods:", "RANK", ranks(pods), pods, room)
    yield from _ranks_table("Samplers:", "NUMBER", ranks(pods, SAMPLER), pods, room)
    for service in part(job.raw, "spec", "services", missing=[]):
        yield from _ranks_table(f"Service {service['name']}:", "NUMBER", ranks(pods, service["name"]), pods, room)


def _ranks_table(
    title: str, number: str, pod_ranks: Sequence[Rank], pods: Sequence[Manifest], room: int | None
) -> Iterator[str]:
    if pod_ranks:
        phases = {pod["metadata"]["name"]: part(pod, "status", "phase", missing="") for pod in pods}
        nodes = {pod["metadata"]["name"]: part(pod, "spec", "nodeName", missing="") for pod in pods}
        yield title
        rows = [
            (str(r.number), str(r.attempt), r.pod, phases[r.pod], nodes[r.pod], "" if r.has_started else r.waiting_for)
            for r in pod_ranks
        ]
        yield from _indented(table_or_records((number, "ATTEMPT", "POD", "PHASE", "NODE", "WAITING FOR"), rows, room))


def _events(job: JobView, events: Sequence[Manifest], now: datetime, room: int | None) -> Iterator[str]:
    rows = job_event_rows(job, events, _NEWEST_EVENTS, now)
    if rows:
        yield "Events:"
        yield from _indented(table_or_records(("AGE", "TYPE", "REASON", "MESSAGE"), rows, room))


def _sample(sample: tuple[int, Manifest] | None) -> Iterator[str]:
    if sample:
        step, row = sample
        yield f"Best sample of step {step} (reward {number(row.get('reward')) or 'unknown'}):"
        text = f"{row.get('prompt', '')}\n{row.get('completion', '')}"
        yield from _indented(printable(text if len(text) <= _SAMPLE_LENGTH else f"{text[:_SAMPLE_LENGTH]} ..."))


def _links(job: JobView) -> Iterator[str]:
    links = part(job.raw, "status", "links", missing={})
    yield from _pair("Run directory", job.run_uri)
    for key, label in _LINKS:
        yield from _pair(label, links.get(key))


def _indented(text: str) -> Iterator[str]:
    return (f"{' ' * _INDENT}{line}" for line in text.splitlines())
