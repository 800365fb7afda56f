"""`ptctl workload export`: copy a run's result, or a checkpoint's weights, to where it is needed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ptapi.run_directory import CHECKPOINTS, EXPORT
from ptapi.text import bucket_names
from ptctl.errors import INTERRUPTED, OK, CliError, InputError, MissingError
from ptctl.jobs.view import JobView, part, view
from ptctl.runs.export import source as sources
from ptctl.runs.export.destination import Bucket, Destination, Folder, claimed
from ptctl.runs.export.source import Source
from ptctl.runs.storage import claim, local_run
from ptctl.ui.app import App, Target

HUGGINGFACE = "huggingface"


@dataclass(frozen=True)
class Choice:
    """What to export. form: `merged` or `adapters`; None is as the run wrote it. layout: HUGGINGFACE or MaxText's."""

    step: int | None = None
    form: str | None = None
    layout: str = HUGGINGFACE


def export(app: App, target: Target, name: str, place: str, choice: Choice, *, overwrite: bool) -> None:
    """Copy the result, and print where it is."""
    destination = _destination(place)
    job = view(local_run.find(app, target, name))
    with _result(app, target, job, choice) as source:
        record = _record(job, choice, source)
        destination.write(source, claimed(destination, record, overwrite=overwrite), app.console.say)
    app.console.data(destination.uri)


def _destination(place: str) -> Destination:
    scheme, mark, rest = place.partition("://")
    if not mark or scheme == "file":
        return Folder(Path(rest if mark else place))
    if scheme == "gs" and rest:
        if wrong := bucket_names.problem(place):
            raise InputError(wrong)
        return Bucket(place)
    if scheme == "hf":
        from ptctl.runs.export.hub import Hub

        return Hub(place)
    raise InputError(f"{place}: accepted: a directory, gs://BUCKET/PATH or hf://ORGANISATION/NAME")


def _record(job: JobView, choice: Choice, source: Source) -> bytes:
    """Return what identifies this export, without addresses: the place may be public."""
    layout = {} if choice.layout == HUGGINGFACE else {"layout": choice.layout}
    body = {"job": job.name, "step": choice.step, **layout, "files": dict(source.digests)}
    return (json.dumps(body, indent=2) + "\n").encode()


@contextmanager
def _result(app: App, target: Target, job: JobView, choice: Choice) -> Iterator[Source]:
    """Give the result: as the run wrote it, or written by the trainer from a checkpoint."""
    if choice.step is None and choice.layout == HUGGINGFACE:
        with _written(app, target, job) as written:
            if written.is_complete and choice.form in (None, _form(written)):
                yield written
                return
        if choice.form is None:
            raise MissingError(_unfinished(job), "--step N exports a checkpoint of a run that has not ended")
    if claim.is_elsewhere(job):
        raise CliError(
            f"{job.run_uri} is on a claim: its checkpoints cannot be read here",
            f"in a pod with the trainer's image and the claim: python -m pttrainer export --checkpoint {job.run_uri}",
        )
    with tempfile.TemporaryDirectory(prefix="posttrain-") as folder:
        _write_checkpoint(job, choice, folder)
        yield sources.in_folder(Path(folder))


@contextmanager
def _written(app: App, target: Target, job: JobView) -> Iterator[Source]:
    """Give what the run itself has exported so far."""
    uri = f"{job.run_uri}/{EXPORT}"
    path = uri.removeprefix("file://")
    if uri.startswith("gs://"):
        yield sources.in_bucket(uri)
    elif claim.is_elsewhere(job):
        with sources.on_claim(app.connect(target), job, path) as source:
            yield source
    else:
        yield sources.in_folder(Path(path))


def _form(written: Source) -> str:
    return "adapters" if sources.ADAPTER_CONFIG in written.digests else "merged"


def _unfinished(job: JobView) -> str:
    at = f", step {job.progress}" if job.progress else ""
    return f"job {job.name!r} has no result in {job.run_uri}/{EXPORT} (phase {job.phase}{at})"


def _write_checkpoint(job: JobView, choice: Choice, folder: str) -> None:
    """Let the trainer write a checkpoint's weights into a directory here."""
    from ptctl.trainer_process import run_verb

    has_adapters = part(job.raw, "spec", "training", "lora", missing=None) is not None
    if choice.form == "adapters" and not has_adapters:
        raise InputError(f"--adapters: job {job.name!r} trains all weights; accepted: a job with spec.training.lora")
    if choice.form == "adapters" and choice.layout != HUGGINGFACE:
        raise InputError(f"--adapters: --layout {choice.layout}: has all weights; accepted: --layout {HUGGINGFACE}")
    merges = choice.form != "adapters" and (choice.form == "merged" or not _keeps_adapters(job))
    checkpoint = job.run_uri if choice.step is None else f"{job.run_uri}/{CHECKPOINTS}/{choice.step}"
    options = ["--merge-lora"] if has_adapters and merges and choice.layout == HUGGINGFACE else []
    options.append(f"--layout={choice.layout}")
    code = run_verb("export", f"--checkpoint={checkpoint}", f"--out={folder}", *options)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code != OK:
        raise CliError(f"the trainer exports no weights of {checkpoint}")


def _keeps_adapters(job: JobView) -> bool:
    export: dict[str, object] = part(job.raw, "spec", "export", missing={})
    return export.get("format") == "peft" or export.get("mergeLora") is False
