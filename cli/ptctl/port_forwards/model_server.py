"""Reach a server of a model in the cluster from here, by its Service."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ptctl.errors import CliError, MissingError
from ptctl.jobs.lookup import namespace_of
from ptctl.port_forwards import port_forward
from ptctl.ui.app import App, Target
from ptkube.objects import label
from ptkube.resources import DEPLOYMENTS, Manifest
from ptoperator.kube import labels
from ptoperator.render.serving.deployment import model_names
from ptoperator.render.serving.server import PORT

if TYPE_CHECKING:
    from ptkube.client import Kube

_END_S = 10.0


@contextmanager
def forwarded(app: App, target: Target, name: str) -> Iterator[str]:
    """Yield the URL of a server, or of a job's, here; the block's end ends the port-forward.

    name: `NAME#MODEL` for one of its adapters. Raises CliError.
    """
    name, _, wanted = name.partition("#")
    kube = app.connect(target)
    namespace = namespace_of(kube, target) or kube.namespace
    deployment = _ready(kube, namespace, name)
    model = _model(deployment, wanted)
    words = port_forward.command(target, namespace, f"service/{deployment['metadata']['name']}", 0, PORT)
    with _running(words) as port:
        yield f"http://127.0.0.1:{port}/v1#{model}"


def _ready(kube: Kube, namespace: str, name: str) -> Manifest:
    """Return the Deployment of a server that answers. Raises CliError."""
    items = kube.list(DEPLOYMENTS, namespace, labels=f"{labels.COMPONENT}=server,{labels.NAME}=posttrain").items
    named = [(label(item, key), item) for item in items for key in (labels.JOB_SERVED, labels.SERVER)]
    names = {own_name: item for own_name, item in named if own_name}
    if name not in names:
        raise MissingError(
            f"{name!r} is no server in namespace {namespace!r}, and no job that one serves; "
            f"accepted: {', '.join(sorted(names)) or '(there are none)'}",
            "`ptctl serve JOB --on gke` makes one",
        )
    deployment = names[name]
    if not (deployment.get("status") or {}).get("readyReplicas"):
        own = deployment["metadata"]["name"]
        raise CliError(f"server {own!r} is not ready", f"kubectl -n {namespace} describe deployment {own}")
    return deployment


def _model(deployment: Manifest, wanted: str) -> str:
    """Return the model that is wanted, else the adapters of the job that is served, else its only model."""
    names = model_names(deployment)
    if wanted and wanted not in names:
        own = deployment["metadata"]["name"]
        raise MissingError(f"{own}#{wanted}: the server has no such model; accepted: {', '.join(names)}")
    job = label(deployment, labels.JOB_SERVED)
    return wanted or (job if job in names else names[0])


@contextmanager
def _running(words: list[str]) -> Iterator[str]:
    """Run kubectl's port-forward, and yield the port that it has chosen. Raises CliError if it ends before."""
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise CliError("kubectl is not installed", "https://kubernetes.io/docs/tasks/tools") from error
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # Forwarding from 127.0.0.1:43211 -> 8000; it says why not on stderr
        if not line.startswith("Forwarding from "):
            raise CliError(f"kubectl port-forward exited with code {process.wait(_END_S)}")
        yield line.split(" -> ")[0].rpartition(":")[2]
    finally:
        process.terminate()
        process.wait(_END_S)
