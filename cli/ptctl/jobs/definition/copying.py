"""A new job made from one that exists: `clone` with changes, `retry` from where a failed one stopped.

A job never changes once it is created, and a run directory is one job's. So both make another job under another name,
and nothing of the first one is touched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from ptctl.errors import CliError, InputError
from ptctl.jobs.definition.file import check, without_server_fields
from ptctl.jobs.definition.set_field import assign_all
from ptctl.jobs.lookup import fetch, namespace_of
from ptctl.jobs.submission import submit
from ptctl.jobs.view import JobView, part, view
from ptctl.ui.app import App, Target
from ptkube.errors import Forbidden
from ptkube.resources import POSTTRAINJOBS, Manifest

if TYPE_CHECKING:
    from ptctl.ui.command_line.copy_options import CopyOptions
    from ptkube.client import Kube

_KEPT_METADATA = ("namespace", "labels", "annotations")


def clone(app: App, target: Target, name: str, options: CopyOptions) -> None:
    """Create a job with the spec of another one and these changes."""
    kube = app.connect(target)
    _submit_copy(app, kube, target, fetch(kube, target, name), options)


def retry(app: App, target: Target, name: str, options: CopyOptions) -> None:
    """Create a failed job again, under another name, from its newest checkpoint if it has one."""
    kube = app.connect(target)
    failed = view(fetch(kube, target, name))
    _check_failed(failed)
    source = copy.deepcopy(failed.raw)
    uri = _continue_from_checkpoint(source, failed)
    _submit_copy(app, kube, target, source, options, _outlook(failed, uri, has_changes=bool(options.assignments)))


def _submit_copy(
    app: App, kube: Kube, target: Target, source: Manifest, options: CopyOptions, notes: Iterable[str] = ()
) -> None:
    """Create the copy, after the notes; nothing of either if it is invalid."""
    job = _copy(source, options.name or _free_name(kube, target, source["metadata"]["name"]), options.assignments)
    _check(kube, job)
    for note in notes:
        app.console.say(note)
    submit(app, target, job, options.form, options.dry_run, "--name")


def _outlook(failed: JobView, uri: str, *, has_changes: bool) -> Iterator[str]:
    """Yield why the job failed, where its copy begins, and what to think of."""
    yield f"job {failed.name!r} failed with {failed.failure or 'no recorded cause'}"
    if uri:
        yield f"the new run goes on from {uri}"
    else:
        yield "it has no checkpoint of posttrain's trainer: the new run begins at step 0"
    if not has_changes:
        yield "unless the cause is gone it fails again; --set changes fields of spec"


def _free_name(kube: Kube, target: Target, name: str) -> str:
    """Return the first of NAME-2, NAME-3, … that no job of the namespace has."""
    taken = {job["metadata"]["name"] for job in kube.list(POSTTRAINJOBS, namespace_of(kube, target)).items}
    return next(f"{name}-{number}" for number in count(2) if f"{name}-{number}" not in taken)


def _copy(source: Manifest, name: str, changes: Sequence[str]) -> Manifest:
    """Return the job as a person would write it: with the new name, and neither status nor suspension."""
    job = copy.deepcopy(without_server_fields(source)[0])
    job["metadata"] = {
        "name": name,
        **{key: job["metadata"][key] for key in _KEPT_METADATA if job["metadata"].get(key)},
    }
    annotations = job["metadata"].pop("annotations", {})
    own = {key: value for key, value in annotations.items() if not key.startswith("kubectl.kubernetes.io/")}
    if own:
        job["metadata"]["annotations"] = own
    (job["spec"].get("runPolicy") or {}).pop("suspend", None)
    assign_all(job, changes)
    return job


def _check(kube: Kube, job: Manifest) -> None:
    """Refuse an invalid job, and one whose run directory is another job's, as the operator would afterwards."""
    check(job, f"the copy {job['metadata']['name']!r}")
    new = view(job)
    try:
        jobs = kube.list(POSTTRAINJOBS, None).items
    except Forbidden:  # only this namespace's jobs may be read
        jobs = kube.list(POSTTRAINJOBS, new.namespace or kube.namespace).items
    other = next((job for job in map(view, jobs) if job.run_uri == new.run_uri), None)
    if other is not None:
        raise InputError(
            f"spec.output.uri: {new.run_uri} is the run directory of job {other.name!r} in namespace "
            f"{other.namespace!r}; accepted: a directory of its own",
            "--name NAME, or --set output.uri=URI",
        )


def _check_failed(job: JobView) -> None:
    hints = {
        "Succeeded": f"`ptctl workload clone {job.name}` runs it once more",
        "Suspended": f"`ptctl workload resume {job.name}` continues it",
    }
    if job.phase != "Failed":
        hint = hints.get(job.phase, "the operator itself restarts it after failures, up to runPolicy.maxRestarts")
        raise CliError(f"job {job.name!r}: phase {job.phase}; accepted: Failed", hint)


def _continue_from_checkpoint(source: Manifest, failed: JobView) -> str:
    """Let the copy begin at the newest good checkpoint, and return its address; "" if there is none."""
    uri = str(part(failed.raw, "status", "checkpoint", "uri", missing=""))
    if not uri or {"maxtext", "container"} & set(part(source, "spec", "runtime", missing={})):
        return ""  # the trainer alone can begin at a checkpoint of another run
    step = int(part(failed.raw, "status", "checkpoint", "step", missing=0))
    if failed.total and step >= failed.total:
        raise CliError(
            f"job {failed.name!r} has done all its {failed.total} steps: {uri}",
            f"`python -m pttrainer export` writes that checkpoint's weights; `ptctl workload clone {failed.name}` "
            "begins anew",
        )
    spec = source["spec"]
    spec["checkpoint"] = {**(spec.get("checkpoint") or {}), "fork": {"uri": uri, "state": "full"}}
    ((spec.get("training") or {}).get("lora") or {}).pop("from", None)  # the checkpoint holds the adapters
    return uri
