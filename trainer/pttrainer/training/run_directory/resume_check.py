"""Check whether a job may resume the run in its directory.

A run with at least one step is compared with the job before anything is written: its spec.yaml field by field
(`ptapi.spec_changes`), and the files that its lineage records (`file_contents`). Changes of meaning are refused, all
of them in one error; other changes are reported and recorded in the lineage. A directory without a step holds nothing
to resume: any job may start there.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ptapi import run_directory, spec_changes
from ptapi.errors import SpecError
from ptapi.spec import PostTrainJob
from ptapi.spec_changes import Change, Difference
from pttrainer.data.sources import formats
from pttrainer.errors import ConfigError, DataError
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.huggingface import HUB
from pttrainer.runtime.io.place import Place
from pttrainer.training.run_directory import file_contents, run_files
from pttrainer.training.run_directory.file_contents import File
from pttrainer.training.run_directory.latest_step import RunProgress, run_progress

DATA = "spec.data."
SHOWN = 5
"""Most files of a field to list."""
ABSENT = "not there"
ANOTHER = ("spec.model.uri", "spec.model.revision", "spec.training.lora", "spec.training.quantization")
"""Fields whose change makes the run's weights useless to the job."""


class Resumed(NamedTuple):
    """A run that is resumed, and the permitted changes since its last attempt."""

    at: RunProgress
    changes: Sequence[Difference] = ()


def compare(job: PostTrainJob, place: Place) -> Resumed | None:
    """Return the changes since the last attempt, or None if the directory holds no step. Writes nothing.

    Raises ConfigError, or DataError if only data differ.
    """
    at = run_progress(place)
    if at is None:
        return None
    if job.spec.checkpoint.resume == "never":
        raise ConfigError(
            f"spec.checkpoint.resume: never: {place.uri} holds a run at step {at.step}; accepted: auto, "
            f"which resumes it; {_hint(job, place, at, [])}"
        )
    before, removed = _previous_job(job, place, at)
    all_differences = [*removed, *_length(before, job, at)]
    all_differences += [x for x in spec_changes.differences(before, job) if x.change is not Change.LENGTH]
    refused = {x.field: [str(x)] for x in all_differences if x.change is Change.MEANING}
    are_data = not refused
    for field, lines in _contents(job, run_files.read_lineage(place), all_differences):
        refused[field] = lines
        are_data = are_data and field.startswith(DATA)
    if refused:
        lines = [line for lines in refused.values() for line in lines]
        raise (DataError if are_data else ConfigError)(_refusal(job, place, at, lines))
    return Resumed(at, all_differences)


def _previous_job(job: PostTrainJob, place: Place, at: RunProgress) -> tuple[PostTrainJob, list[Difference]]:
    """Return the job of the last attempt, and its fields that no longer exist. Raises ConfigError."""
    content = place.read(run_directory.SPEC)
    try:
        if content is not None and run_files.read_lineage(place):
            return spec_changes.read_job(content)
        problem = f"{run_directory.SPEC if content is None else run_directory.LINEAGE} is not there"
    except SpecError as error:
        problem = f"{run_directory.SPEC} cannot be read: {error.findings[0]}"
    except run_files.UnreadableLineage as error:
        problem = f"{run_directory.LINEAGE} cannot be read: {error.reason}"
    raise ConfigError(
        f"{place.uri}: holds a run at step {at.step}, and its original job is unknown: {problem}; "
        f"accepted: an unmodified run directory; {_hint(job, place, at, [])}"
    )


def compare_images(digests: Mapping[str, str], place: Place) -> None:
    """Raise ConfigError if images that rows name are not those that the run began with.

    They are known once the rows are read. digests: of their bytes, by part of the data.
    """
    recorded: Mapping[str, str] = run_files.read_lineage(place).get("images") or {}
    changed = [part for part, digest in recorded.items() if digests.get(part) != digest]
    if changed:
        raise ConfigError(
            f"spec.data.{changed[0]}: the images of its rows are not those that the run in {place.uri} began with; "
            "accepted: the same files; hint: restore them, or start a new run under another metadata.name"
        )


def _length(before: PostTrainJob, job: PostTrainJob, at: RunProgress) -> Iterator[Difference]:
    """Yield the difference in the run's length, if any.

    The steps of an epoch are known only after reading the rows, so epochs may only increase.
    """
    (old, was), (new, now) = (spec_changes.length(x.spec.training) for x in (before, job))
    if (old, was) == (new, now):
        return
    old_length, done = f"{was:g}" if old == new else f"{was:g} {old.rpartition('.')[2]}", at.checkpoint or 0
    kind = job.spec.training.schedule.kind
    if now > (done if new == spec_changes.STEPS else was) and (old == new or new == spec_changes.STEPS):
        yield Difference(
            new, old_length, f"{now:g}", Change.LENGTH, f"; the {kind} schedule then covers the new length"
        )
    elif new == spec_changes.STEPS:
        note = f"; the newest checkpoint is at step {done}; accepted: more than {done}"
        yield Difference(new, old_length, f"{now:g}", Change.MEANING, note)
    else:
        more = f"more than {was:g}, or " if old == new else ""
        note = f"; accepted: {more}spec.training.steps, more than {done}, the step of the newest checkpoint"
        yield Difference(new, old_length, f"{now:g}", Change.MEANING, note)


def _contents(
    job: PostTrainJob, lineage: Mapping[str, Any], all_differences: Sequence[Difference]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the fields whose files have changed, with a line for each change."""
    was, now = file_contents.recorded(lineage), {**file_contents.of_job(job), **dict(_data(job, lineage))}
    moved: dict[str, list[Difference]] = {}
    for difference in all_differences:
        moved.setdefault(_source(difference.field), []).append(difference)
    for field in dict.fromkeys([*was, *now, *moved]):
        differences = moved.get(field, [])
        if any(x.change is not Change.CONTENT for x in differences):
            continue
        before, after = was.get(field, []), now.get(field, [])
        if not differences:
            lines = _lines(field, before, after) if before and after else []
        elif _is_pinned(field, job, lineage) or (before and _content_keys(before) == _content_keys(after)):
            lines = []
        else:
            lines = [f"{x}{_content_note(before, after)}" for x in differences]
        if lines:
            yield field, lines


def _data(job: PostTrainJob, lineage: Mapping[str, Any]) -> Iterator[tuple[str, list[File]]]:
    """Yield the data's files by field, except Hugging Face data at the commit that the run began with."""
    for part, source in run_files.data_parts(job.spec.data):
        field = f"spec.data.{part}"
        recorded_source = lineage.get("data", {}).get(part, {})
        is_same = {name: recorded_source.get(name) for name in ("uri", "revision")} == run_files.source_identity(source)
        if not (source.uri.startswith(HUB) and (is_same or _is_pinned(field, job, lineage))):
            yield field, file_contents.of_data(source, field)


def _is_pinned(field: str, job: PostTrainJob, lineage: Mapping[str, Any]) -> bool:
    """Return True if the job now names the commit that the run has used from the start."""
    if field == "spec.model.revision":
        return job.spec.model.revision is not None and job.spec.model.revision == lineage.get("modelCommit")
    for part, source in run_files.data_parts(job.spec.data):
        recorded_source = lineage.get("data", {}).get(part, {})
        if field == f"spec.data.{part}" and source.revision is not None:
            return bool(recorded_source.get("uri") == source.uri and recorded_source.get("commit") == source.revision)
    return False


def _source(field: str) -> str:
    """Return the key in `file_contents` of the files that a field names."""
    parts = field.split(".")
    is_location = parts[:2] == ["spec", "data"] and parts[-1] in ("uri", "revision")
    return ".".join(parts[:3]) if is_location else field


def _content_keys(files: Sequence[File]) -> list[tuple[str | None, str]]:
    """Return keys that are equal if the files hold the same: format and digest, in order."""
    return [(formats.suffix(file.uri), file.digest) for file in files]


def _content_note(before: Sequence[File], after: Sequence[File]) -> str:
    if len(before) == len(after) == 1:
        return f", whose content differs: was {before[0]}, is {after[0]}"
    return f", whose content differs: {len(before)} files before, {len(after)} now" if before and after else ""


def _lines(field: str, before: Sequence[File], after: Sequence[File]) -> list[str]:
    was, now = ({file.uri: file for file in files} for files in (before, after))
    field = f"{field}.uri" if field.startswith(DATA) else field
    differing = [uri for uri in dict.fromkeys([*was, *now]) if was.get(uri) != now.get(uri)]
    lines = [f"{field}: {uri}: was {was.get(uri, ABSENT)}, is {now.get(uri, ABSENT)}" for uri in differing[:SHOWN]]
    more = len(differing) - SHOWN
    return [*lines, f"{field}: and {more} more files"] if more > 0 else lines


def _refusal(job: PostTrainJob, place: Place, at: RunProgress, lines: list[str]) -> str:
    return "\n".join(
        [
            f"spec: differs from the job that started the run in {place.uri}, now at step {at.step}:",
            *lines,
            "accepted: the original job; fields that may change: docs/reference/resume.md; "
            f"{_hint(job, place, at, lines)}",
        ]
    )


def _hint(job: PostTrainJob, place: Place, at: RunProgress, lines: Sequence[str]) -> str:
    """Return the hint: a new name, with or without the run's weights, or this name with the old run moved away."""
    ways = ["start a new run under another metadata.name"]
    if at.checkpoint is not None and not any(line.startswith(ANOTHER) for line in lines):
        uri = f"{place.uri}/{run_directory.CHECKPOINTS}/{at.checkpoint}"
        ways[0] += f", from this one's weights with `checkpoint: {{fork: {{uri: {uri}, state: weights}}}}`"
    if isinstance(place, Directory) and not job.metadata.uid:
        ways.append("start over under this name with `ptctl train --fresh`, which keeps the old run under another name")
    return f"hint: {'; or '.join(ways)}"
