"""The run directory as the trainer uses it: claimed once, then filled (layout: `ptapi.rundir`).

A directory belongs to one job from its first step on. Another job is refused before anything is written: it would go
on from checkpoints that are not its own. That no two processes of one job write there, the `lease` sees to.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ptapi import rundir
from ptapi.spec import DataSource, DataSpec, PostTrainJob
from pttrainer import holder, storage
from pttrainer.data import files
from pttrainer.errors import ConfigError
from pttrainer.sources import NOTHING_PINNED, Pinned
from pttrainer.storage import Place

PACKAGES = ("posttrain", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tokenizers", "numpy")


_OF_NOBODY = (rundir.PROGRESS, rundir.TERMINATION, rundir.LINEAGE, rundir.BEST, rundir.METRICS)
_FOLDERS = (rundir.SAMPLES, rundir.JUDGE, rundir.NON_FINITE, rundir.TENSORBOARD, rundir.STACKS, rundir.HEARTBEATS)


def open_run(job: PostTrainJob) -> Place:
    """The job's run directory, after checking that it is nobody else's. Writes nothing."""
    place = storage.place(rundir.run_uri(job.spec.output.uri, job.metadata.name))
    owner = _owner(place)
    if owner is not None and not _same(owner, owner_of(job)) and _has_steps(place):
        writer = holder.of_place(place)
        raise ConfigError(
            f"spec.output.uri: {place.uri} belongs to another job ({owner.namespace or 'no namespace'}/"
            f"{owner.name or 'no name that can be read'}, uid {owner.uid or 'none'}); accepted: a directory that is "
            f"new, has no step yet, or is this job's own{f'; {writer} writes there' if writer else ''}; hint: change "
            "spec.output.uri or the job's name, or remove the directory; to go on from its checkpoints, change the "
            f"name and add checkpoint: {{fork: {{uri: {place.uri}, state: full}}}}"
        )
    return place


def claim(place: Place, job: PostTrainJob) -> None:
    """Writes owner and spec, after clearing away what an owner without a step left; call on one process only."""
    owner = _owner(place)
    if owner is not None and not _same(owner, owner_of(job)):
        for name in (*_OF_NOBODY, *(file for folder in _FOLDERS for file in place.names(folder))):
            place.remove(name)
    place.write(rundir.OWNER, _json(owner_of(job).model_dump(by_alias=True)))
    spec = job.model_dump(by_alias=True, exclude_none=True, mode="json")
    place.write(rundir.SPEC, yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).encode())


def write_lineage(place: Place, job: PostTrainJob, data: DataSpec, facts: Mapping[str, Any]) -> None:
    """What this run was made of, so that it can be made again. data: the job's, pinned to commits."""
    document = {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "image": job.spec.image,
        "model": {"uri": job.spec.model.uri, "revision": job.spec.model.revision},
        "data": {
            part: {**_named(getattr(job.spec.data, part)), **files.facts(source, f"spec.data.{part}")}
            for part, source in _parts(data)
        },
        "seed": job.spec.training.seed,
        **facts,
    }
    place.write(rundir.LINEAGE, _json(document))


def known_lineage(place: Place) -> dict[str, Any]:
    """What an earlier attempt of this run wrote down; empty where there was none."""
    content = place.read(rundir.LINEAGE)
    return {} if content is None else json.loads(content)


def pinned_commits(place: Place, job: PostTrainJob) -> Pinned:
    """The commits of the model and of first adapters that an earlier attempt of this run began with."""
    lineage = known_lineage(place)
    if not lineage:
        return NOTHING_PINNED
    same = lineage["model"] == {"uri": job.spec.model.uri, "revision": job.spec.model.revision}
    lora, origin = job.spec.training.lora, lineage.get("adaptersFrom", {})
    same_origin = lora is not None and lora.origin == origin.get("uri")
    return Pinned(lineage.get("modelCommit") if same else None, origin.get("commit") if same_origin else None)


def pinned_data(place: Place, job: PostTrainJob) -> DataSpec:
    """The job's data at one commit each: the one that an earlier attempt of this run began with, or today's."""
    content = place.read(rundir.LINEAGE)
    before = json.loads(content)["data"] if content is not None else {}
    sources = {}
    for part, source in _parts(job.spec.data):
        known = before.get(part, {})
        same = {name: known.get(name) for name in ("uri", "revision")} == _named(source)
        sources[part] = files.pinned(source, f"spec.data.{part}", known.get("commit") if same else None)
    return job.spec.data.model_copy(update=sources)


def save_samples(place: Place, step: int, rows: list[dict[str, Any]]) -> None:
    """The sample table of a step."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    place.write(rundir.sample_file(step), lines.encode(errors="replace"))  # data may hold halves of characters


def owner_of(job: PostTrainJob) -> rundir.Owner:
    """Who this job is."""
    return rundir.Owner(name=job.metadata.name, namespace=job.metadata.namespace or "", uid=job.metadata.uid or "")


def _same(owner: rundir.Owner, job: rundir.Owner) -> bool:
    """By uid in a cluster; a laptop has only names. One of each may be two jobs, so they are."""
    return owner.uid == job.uid if owner.uid or job.uid else owner.name == job.name


def _owner(place: Place) -> rundir.Owner | None:
    content = place.read(rundir.OWNER)
    try:
        return None if content is None else rundir.Owner.model_validate_json(content)
    except ValueError:
        return rundir.Owner(name="")  # somebody


def _has_steps(place: Place) -> bool:
    """Whether there is a metrics line or a checkpoint; on a bucket, also one that is not committed."""
    if (place.read(rundir.METRICS) or b"").strip():
        return True
    return any(re.match(rf"{rundir.CHECKPOINTS}/\d+/", name) for name in place.names(rundir.CHECKPOINTS))


def _parts(data: DataSpec) -> list[tuple[str, DataSource]]:
    return [(part, source) for part in ("train", "eval") if (source := getattr(data, part)) is not None]


def _named(source: DataSource) -> dict[str, Any]:
    return {"uri": source.uri, "revision": source.revision}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
