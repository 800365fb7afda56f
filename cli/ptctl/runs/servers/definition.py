"""The server that flags ask for: of a job's export, or of a model on a bucket or the hub."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ptapi.load import parse_job
from ptapi.run_directory import EXPORT
from ptapi.spec import API_GROUP, API_VERSION, KIND
from ptctl.errors import InputError
from ptctl.jobs.view import part, view
from ptctl.runs.storage import local_run
from ptctl.ui.app import App, Target
from ptkube.resources import Manifest
from ptoperator.render.serving.server import Server, Weights, server_name, server_of_job

MANAGER = "ptctl"
_REMOTE = ("gs://", "hf://")


def server(app: App, target: Target, model: str, flags: Manifest, account: str | None, *, is_applied: bool) -> Server:
    """Return the server of a job or a remote model. flags: fields of `spec.serve`. Raises SpecError, CliError."""
    made = (
        _of_model(target, model, flags) if model.startswith(_REMOTE) else _of_job(app, target, model, flags, is_applied)
    )
    return replace(made, manager=MANAGER, service_account=account or made.service_account)


def _of_job(app: App, target: Target, name: str, flags: Manifest, is_applied: bool) -> Server:
    body = local_run.find(app, target, name)
    job_view = view(body)
    if job_view.phase != "Succeeded":
        message = f"job {job_view.name!r} is {job_view.phase}: its export is complete when it has succeeded"
        if is_applied:
            raise InputError(message, f"`ptctl workload wait {job_view.name}{target.flags}`, then the same command")
        app.console.say(message)
    own = dict(part(body, "spec", "serve", missing={}))
    own.pop("bar", None)  # whoever types the command has decided
    for kind, other in (("tpu", "gpu"), ("gpu", "tpu")):
        if kind in flags:
            own.pop(other, None)
    job = parse_job({**body, "spec": {**body["spec"], "serve": {**own, **flags}}})
    assert job.spec.serve is not None
    return server_of_job(job, job.spec.serve, "default")


def _of_model(target: Target, uri: str, flags: Manifest) -> Server:
    base = flags.get("name") or _label(uri)
    spec = {
        "model": {"uri": uri},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": "file:///unused"}},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": "file:///unused"},
        "serve": flags,
    }
    metadata = {"name": base, "namespace": target.namespace or "default"}
    document = {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": KIND, "metadata": metadata, "spec": spec}
    job = parse_job(document)
    assert job.spec.serve is not None
    weights = Weights(uri, {adapter.name: adapter.uri for adapter in job.spec.serve.adapters})
    made = server_of_job(job, job.spec.serve, "default")
    name = flags.get("name") or (uri.removeprefix("hf://") if uri.startswith("hf://") else base)
    return replace(made, name=server_name(base), model_name=name, weights=weights, job="")


def _label(uri: str) -> str:
    """Return a name made of the end of a URI: of an export, that of its run."""
    parts = uri.rstrip("/").split("/")
    last = parts[-2] if parts[-1] == EXPORT else parts[-1]
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:50].rstrip("-") or "model"


def fields(**values: Any) -> Manifest:
    """Return flags as fields of `spec.serve`; unset ones are left out. Raises InputError."""
    made = {key: values[key] for key in ("tpu", "name", "image") if values[key] is not None}
    if values["max_length"] is not None:
        made["maxLength"] = values["max_length"]
    if values["tool_parser"] is not None:
        made["toolParser"] = values["tool_parser"]
    if values["gpu"] is not None:
        made["gpu"] = _gpu(values["gpu"])
    if values["replicas"] is not None or values["queue_length"] is not None:
        made["replicas"] = _replicas(values["replicas"] or "1", values["queue_length"])
    if values["adapters"]:
        made["adapters"] = [_adapter(word) for word in values["adapters"]]
    route = {key: values[flag] for key, flag in _GATEWAY.items() if values[flag] is not None}
    if route:
        made["gateway"] = route
    return made


_GATEWAY = {"name": "gateway", "hostname": "hostname", "endpointPicker": "endpoint_picker"}


def _gpu(word: str) -> Manifest:
    kind, _, count = word.partition(":")
    if count and not count.isdecimal():
        raise InputError(f"--gpu {word}: accepted: TYPE or TYPE:COUNT, such as nvidia-l4 or nvidia-h100-80gb:8")
    return {"type": kind, "count": int(count or 1)}


def _replicas(word: str, queue_length: int | None) -> Manifest:
    lowest, _, highest = word.partition(":")
    if not lowest.isdecimal() or not (highest or lowest).isdecimal():
        raise InputError(f"--replicas {word}: accepted: N, or MIN:MAX, such as 1:4, or 0:2")
    queue = {} if queue_length is None else {"queueLength": queue_length}
    return {"min": int(lowest), "max": int(highest or lowest), **queue}


def _adapter(word: str) -> Manifest:
    name, separator, uri = word.partition("=")
    if not separator:
        raise InputError(f"--adapter {word}: accepted: NAME=URI, such as math=gs://bucket/runs/math/export")
    return {"name": name, "uri": uri}
