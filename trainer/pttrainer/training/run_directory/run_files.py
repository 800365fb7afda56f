"""The run directory as the trainer uses it: claimed once, then filled (layout: `ptapi.run_directory`).

A directory belongs to one job from its first step on. Another job is refused before anything is written: it would
resume from checkpoints that are not its own. The `lease` ensures that no two processes of one job write there.
"""

import importlib.metadata
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import yaml

from ptapi import run_directory
from ptapi.accelerators import compiler_flags
from ptapi.spec import DataSource, DataSpec, PostTrainJob
from pttrainer.data.sources import files
from pttrainer.errors import ConfigError
from pttrainer.runtime.io import json_text, storage
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.model_files import NOTHING_PINNED, Pinned
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.io.storage_errors import write_error
from pttrainer.training.run_directory import file_contents, lease_holder
from pttrainer.training.run_directory.latest_step import run_progress

PACKAGES = ("posttrain", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tokenizers", "numpy")


_STALE_FILES = (
    run_directory.PROGRESS,
    run_directory.TERMINATION,
    run_directory.LINEAGE,
    run_directory.BEST,
    run_directory.METRICS,
    run_directory.TRACKING,
)
_STALE_FOLDERS = (
    run_directory.SAMPLES,
    run_directory.ROLLOUTS,
    run_directory.JUDGE,
    run_directory.NON_FINITE,
    run_directory.TENSORBOARD,
    run_directory.STACKS,
    run_directory.HEARTBEATS,
    run_directory.WANDB,
    run_directory.TRACKIO,
)


def open_run(job: PostTrainJob) -> Place:
    """Return the job's run directory after checking that no other job owns it. Writes nothing."""
    place = storage.place(run_directory.run_uri(job.spec.output.uri, job.metadata.name))
    owner = _owner(place)
    if owner is not None and not _same(owner, owner_of(job)) and run_progress(place) is not None:
        writer = lease_holder.current_writer(place)
        raise ConfigError(
            f"spec.output.uri: {place.uri} belongs to another job ({owner.namespace or 'no namespace'}/"
            f"{owner.name or 'no name that can be read'}, uid {owner.uid or 'none'}); accepted: a directory that is "
            f"new, has no step yet, or is this job's own{f'; {writer} writes there' if writer else ''}; hint: change "
            "spec.output.uri or the job's name, or remove the directory; to continue from its checkpoints, change the "
            f"name and add checkpoint: {{fork: {{uri: {place.uri}, state: full}}}}"
        )
    return place


def claim(place: Place, job: PostTrainJob) -> None:
    """Write owner and spec, after removing what an owner without a step left. Call on one process only."""
    owner = _owner(place)
    if owner is not None and not _same(owner, owner_of(job)):
        for name in (*_STALE_FILES, *(file for folder in _STALE_FOLDERS for file in place.names(folder))):
            place.remove(name)
    place.write(run_directory.OWNER, _json(owner_of(job).model_dump(by_alias=True)))
    spec = job.model_dump(by_alias=True, exclude_none=True, mode="json")
    place.write(run_directory.SPEC, yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).encode())


def remove_rollouts(place: Place) -> None:
    """Remove the finished rollouts of a run without a step: the job that begins there may be another."""
    for name in place.names(run_directory.ROLLOUTS):
        place.remove(name)


def record(place: Place, step: int, changes: Iterable[tuple[str, str, str]]) -> None:
    """Append the changes after `step` to the lineage: field, old value, new value."""
    lineage = read_lineage(place)
    recorded_changes = lineage.setdefault("changes", [])
    for field, was, now in changes:
        change = {"step": step, "field": field, "from": was, "to": now}
        if change not in recorded_changes:  # from an attempt that ended before it wrote the new spec
            recorded_changes.append(change)
    place.write(run_directory.LINEAGE, _json(lineage))


def set_aside(place: Place, step: int) -> str:
    """Move a run with progress up to `step` away so that another can start, and return its new URI.

    Raises ConfigError.
    """
    if not isinstance(place, Directory):
        raise ConfigError(
            f"--fresh: {place.uri} holds a run at step {step}, and a bucket cannot move it atomically; "
            f"accepted: runs in file://; hint: use another metadata.name, or run: gcloud storage mv {place.uri} "
            f"{place.uri}.previous-1"
        )
    free = next(
        path for n in count(1) if not (path := place.path.with_name(f"{place.path.name}.previous-{n}")).exists()
    )
    try:
        place.path.rename(free)
    except OSError as error:
        raise write_error(f"file://{free}", error) from error
    return f"file://{free}"


def write_lineage(
    place: Place, job: PostTrainJob, data: DataSpec, facts: Mapping[str, Any], resumed_at: int | None = None
) -> list[str]:
    """Write what this run is made of, and return the changes of its environment since the last attempt.

    data: the job's, pinned to commits; resumed_at: the step that a resumed run has reached.
    """
    document = {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "image": job.spec.image,
        "model": {"uri": job.spec.model.uri, "revision": job.spec.model.revision},
        "data": {
            part: {**source_identity(getattr(job.spec.data, part)), **files.facts(source, f"spec.data.{part}")}
            for part, source in data_parts(data)
        },
        "files": file_contents.facts(file_contents.of_job(job)),
        "seed": job.spec.training.seed,
        "xlaFlags": compiler_flags.of_job(job.spec),
        **facts,
    }
    before = {} if resumed_at is None else read_lineage(place)
    env_changes = list(_environment_changes(before, document))
    place.write(run_directory.LINEAGE, _json({**document, "changes": before.get("changes", [])}))
    if resumed_at is not None and env_changes:
        record(place, resumed_at, env_changes)
    return [f"{name}: was {was}, is {now}" for name, was, now in env_changes]


def _environment_changes(before: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield versions, devices and flags that differ, where both are known."""
    for part in ("versions", "devices", "mesh", "samplerMesh", "xlaFlags"):
        was, now = before.get(part, {}), document.get(part, {})
        for name in now:
            if name in was and was[name] != now[name]:
                yield f"{part}.{name}", str(was[name]), str(now[name])


def read_lineage(place: Place) -> dict[str, Any]:
    """Return the lineage that an earlier attempt of this run wrote; empty if there is none."""
    content = place.read(run_directory.LINEAGE)
    try:
        lineage = {} if content is None else json_text.loads(content)
    except ValueError as error:
        raise UnreadableLineage(place, str(error)) from error
    if not isinstance(lineage, dict):
        raise UnreadableLineage(place, "is not an object")
    return lineage


class UnreadableLineage(ConfigError):
    """The lineage of an earlier attempt is no JSON object."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(
            f"{place.uri}/{run_directory.LINEAGE}: {reason}; accepted: what an earlier attempt of the run wrote; hint: "
            "restore the file, or run the job under another name"
        )
        self.reason = reason


def pinned_commits(place: Place, job: PostTrainJob) -> Pinned:
    """Return the commits of the model and initial adapters that an earlier attempt of this run used."""
    lineage = read_lineage(place)
    if not lineage:
        return NOTHING_PINNED
    same = lineage.get("model") == {"uri": job.spec.model.uri, "revision": job.spec.model.revision}
    lora, origin = job.spec.training.lora, lineage.get("adaptersFrom", {})
    same_origin = lora is not None and lora.origin == origin.get("uri")
    return Pinned(lineage.get("modelCommit") if same else None, origin.get("commit") if same_origin else None)


def pinned_data(place: Place, job: PostTrainJob) -> DataSpec:
    """Return the job's data pinned to commits: those of an earlier attempt of this run, or the current ones."""
    before = read_lineage(place).get("data", {})
    sources = {}
    for part, source in data_parts(job.spec.data):
        recorded = before.get(part, {})
        same = {name: recorded.get(name) for name in ("uri", "revision")} == source_identity(source)
        sources[part] = files.pinned(source, f"spec.data.{part}", recorded.get("commit") if same else None)
    return job.spec.data.model_copy(update=sources)


def save_samples(place: Place, step: int, rows: list[dict[str, Any]]) -> None:
    """Write the sample table of a step."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    place.write(run_directory.sample_file(step), lines.encode(errors="replace"))  # data may hold lone surrogates


def owner_of(job: PostTrainJob) -> run_directory.Owner:
    """Return the identity of this job."""
    return run_directory.Owner(
        name=job.metadata.name, namespace=job.metadata.namespace or "", uid=job.metadata.uid or ""
    )


def _same(owner: run_directory.Owner, job: run_directory.Owner) -> bool:
    """Compare by uid in a cluster, by name on a laptop. A uid on one side only means two jobs."""
    return owner.uid == job.uid if owner.uid or job.uid else owner.name == job.name


def _owner(place: Place) -> run_directory.Owner | None:
    content = place.read(run_directory.OWNER)
    try:
        return None if content is None else run_directory.Owner.model_validate_json(content)
    except ValueError:
        return run_directory.Owner(name="")  # somebody


def data_parts(data: DataSpec) -> list[tuple[str, DataSource]]:
    """Return the data sources of the job, by name."""
    return [(part, source) for part in ("train", "eval") if (source := getattr(data, part)) is not None]


def source_identity(source: DataSource) -> dict[str, Any]:
    """Return a source's URI and revision, as the lineage records them."""
    return {"uri": source.uri, "revision": source.revision}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
