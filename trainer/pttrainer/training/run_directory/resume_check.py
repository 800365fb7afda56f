"""Whether a job may go on with the run that its directory holds.

A run that has come to a step is compared with the job before anything is written: its spec.yaml field by field
(`ptapi.resume`), and what its lineage says of the files that shape the result (`contents`). What changes the meaning
is refused, all of it in one error; the rest is told and written into the lineage. A directory without a step holds
nothing to go on with: any job begins there anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ptapi import resume, run_directory
from ptapi.errors import SpecError
from ptapi.resume import Change, Difference
from ptapi.spec import PostTrainJob
from pttrainer.data.sources import formats
from pttrainer.errors import ConfigError, DataError
from pttrainer.runtime.io.huggingface import HUB
from pttrainer.runtime.io.storage import Directory, Place
from pttrainer.training.run_directory import file_contents, run_files
from pttrainer.training.run_directory.file_contents import File
from pttrainer.training.run_directory.latest_step import Reached, reached

DATA = "spec.data."
SHOWN = 5
"""Most files of a field that are named."""
ABSENT = "not there"
ANOTHER = ("spec.model.uri", "spec.model.revision", "spec.training.lora", "spec.training.quantization")
"""Where these differ, the weights of the run are of no use to the job."""


class Resumed(NamedTuple):
    """A run that goes on, and what has changed since its last attempt and may."""

    at: Reached
    changes: Sequence[Difference] = ()


def compare(job: PostTrainJob, place: Place) -> Resumed | None:
    """What has changed since the last attempt, or None where the directory holds no step. Writes nothing; raises
    ConfigError, or DataError where only data differ."""
    at = reached(place)
    if at is None:
        return None
    if job.spec.checkpoint.resume == "never":
        raise ConfigError(
            f"spec.checkpoint.resume: never: {place.uri} holds a run that has come to step {at.step}; accepted: auto, "
            f"which goes on with it; {_hint(job, place, at, [])}"
        )
    before, gone = _before(job, place, at)
    found = [*gone, *_length(before, job, at)]
    found += [x for x in resume.differences(before, job) if x.change is not Change.LENGTH]
    refused = {x.field: [str(x)] for x in found if x.change is Change.MEANING}
    are_data = not refused
    for field, lines in _contents(job, run_files.known_lineage(place), found):
        refused[field] = lines
        are_data = are_data and field.startswith(DATA)
    if refused:
        lines = [line for lines in refused.values() for line in lines]
        raise (DataError if are_data else ConfigError)(_refusal(job, place, at, lines))
    return Resumed(at, found)


def _before(job: PostTrainJob, place: Place, at: Reached) -> tuple[PostTrainJob, list[Difference]]:
    """The job as its last attempt ran, and what of it is no field any more; raises ConfigError."""
    content = place.read(run_directory.SPEC)
    try:
        if content is not None and run_files.known_lineage(place):
            return resume.read_job(content)
        problem = f"{run_directory.SPEC if content is None else run_directory.LINEAGE} is not there"
    except SpecError as error:
        problem = f"{run_directory.SPEC} cannot be read: {error.findings[0]}"
    except ValueError as error:
        problem = f"{run_directory.LINEAGE} cannot be read: {error}"
    raise ConfigError(
        f"{place.uri}: holds a run that has come to step {at.step}, and what it began with is not known: {problem}; "
        f"accepted: a run directory as the trainer left it; {_hint(job, place, at, [])}"
    )


def _length(before: PostTrainJob, job: PostTrainJob, at: Reached) -> Iterator[Difference]:
    """How the run's length differs. What an epoch comes to is known only when the rows are read, so of these there may
    only be more."""
    (old, was), (new, now) = (resume.length(x.spec.training) for x in (before, job))
    if (old, was) == (new, now):
        return
    said, done = f"{was:g}" if old == new else f"{was:g} {old.rpartition('.')[2]}", at.checkpoint or 0
    kind = job.spec.training.schedule.kind
    if now > (done if new == resume.STEPS else was) and (old == new or new == resume.STEPS):
        yield Difference(new, said, f"{now:g}", Change.LENGTH, f"; the {kind} schedule is laid over all of it")
    elif new == resume.STEPS:
        note = f"; the newest checkpoint is of step {done}; accepted: more than {done}"
        yield Difference(new, said, f"{now:g}", Change.MEANING, note)
    else:
        more = f"more than {was:g}, or " if old == new else ""
        note = f"; accepted: {more}spec.training.steps, more than the {done} of the newest checkpoint"
        yield Difference(new, said, f"{now:g}", Change.MEANING, note)


def _contents(
    job: PostTrainJob, lineage: Mapping[str, Any], found: Sequence[Difference]
) -> Iterator[tuple[str, list[str]]]:
    """Fields whose files hold something else than they did, with a line for each."""
    was, now = file_contents.known(lineage), {**file_contents.of_job(job), **dict(_data(job, lineage))}
    moved: dict[str, list[Difference]] = {}
    for difference in found:
        moved.setdefault(_source(difference.field), []).append(difference)
    for field in dict.fromkeys([*was, *now, *moved]):
        differences = moved.get(field, [])
        if any(x.change is not Change.CONTENT for x in differences):
            continue
        before, after = was.get(field, []), now.get(field, [])
        if not differences:
            lines = _lines(field, before, after) if before and after else []
        elif _is_pinned(field, job, lineage) or (before and _held(before) == _held(after)):
            lines = []
        else:
            lines = [f"{x}{_holding(before, after)}" for x in differences]
        if lines:
            yield field, lines


def _data(job: PostTrainJob, lineage: Mapping[str, Any]) -> Iterator[tuple[str, list[File]]]:
    """What the data's files hold; not of Hugging Face's at the commit that the run began with."""
    for part, source in run_files.parts(job.spec.data):
        field = f"spec.data.{part}"
        known = lineage.get("data", {}).get(part, {})
        is_same = {name: known.get(name) for name in ("uri", "revision")} == run_files.named(source)
        if not (source.uri.startswith(HUB) and (is_same or _is_pinned(field, job, lineage))):
            yield field, file_contents.of_data(source, field)


def _is_pinned(field: str, job: PostTrainJob, lineage: Mapping[str, Any]) -> bool:
    """Whether the job now names the commit that the run has had all along."""
    if field == "spec.model.revision":
        return job.spec.model.revision is not None and job.spec.model.revision == lineage.get("modelCommit")
    for part, source in run_files.parts(job.spec.data):
        known = lineage.get("data", {}).get(part, {})
        if field == f"spec.data.{part}" and source.revision is not None:
            return bool(known.get("uri") == source.uri and known.get("commit") == source.revision)
    return False


def _source(field: str) -> str:
    """What `contents` calls the files that a field is about."""
    parts = field.split(".")
    is_location = parts[:2] == ["spec", "data"] and parts[-1] in ("uri", "revision")
    return ".".join(parts[:3]) if is_location else field


def _held(files: Sequence[File]) -> list[tuple[str | None, str]]:
    """What is equal where files hold the same: in which form, in this order."""
    return [(formats.suffix(file.uri), file.digest) for file in files]


def _holding(before: Sequence[File], after: Sequence[File]) -> str:
    if len(before) == len(after) == 1:
        return f", which holds something else: was {before[0]}, is {after[0]}"
    return f", which holds something else: {len(before)} files before, {len(after)} now" if before and after else ""


def _lines(field: str, before: Sequence[File], after: Sequence[File]) -> list[str]:
    was, now = ({file.uri: file for file in files} for files in (before, after))
    field = f"{field}.uri" if field.startswith(DATA) else field
    differing = [uri for uri in dict.fromkeys([*was, *now]) if was.get(uri) != now.get(uri)]
    lines = [f"{field}: {uri}: was {was.get(uri, ABSENT)}, is {now.get(uri, ABSENT)}" for uri in differing[:SHOWN]]
    more = len(differing) - SHOWN
    return [*lines, f"{field}: and {more} more files"] if more > 0 else lines


def _refusal(job: PostTrainJob, place: Place, at: Reached, lines: list[str]) -> str:
    return "\n".join(
        [
            f"spec: not the job that {place.uri} began with, which has come to step {at.step}:",
            *lines,
            f"accepted: the job as it began; what may change: docs/reference/resume.md; {_hint(job, place, at, lines)}",
        ]
    )


def _hint(job: PostTrainJob, place: Place, at: Reached, lines: Sequence[str]) -> str:
    """The ways on: another name, with or without the run's weights; this one, with the old run set aside."""
    ways = ["begin a new run under another metadata.name"]
    if at.checkpoint is not None and not any(line.startswith(ANOTHER) for line in lines):
        uri = f"{place.uri}/{run_directory.CHECKPOINTS}/{at.checkpoint}"
        ways[0] += f", from this one's weights with `checkpoint: {{fork: {{uri: {uri}, state: weights}}}}`"
    if isinstance(place, Directory) and not job.metadata.uid:
        ways.append("start over under this name with `ptctl train --fresh`, which keeps this run beside the new one")
    return f"hint: {'; or '.join(ways)}"
