"""Create, update, list and delete servers. All objects of one carry its label; others' objects are never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptctl.errors import CliError, InputError, MissingError
from ptctl.jobs.lookup import namespace_of
from ptctl.runs.servers.definition import MANAGER
from ptctl.ui.app import App, Target
from ptctl.ui.table import table
from ptkube.errors import ApiError, NotFound
from ptkube.objects import label
from ptkube.resources import (
    DEPLOYMENTS,
    HTTP_ROUTES,
    HTTP_SCALED_OBJECTS,
    INFERENCE_POOLS,
    POD_MONITORINGS,
    Manifest,
    Resource,
)
from ptoperator.kube import labels
from ptoperator.render.serving import KINDS, Server, kind_of, serving_objects
from ptoperator.render.serving.deployment import model_names

if TYPE_CHECKING:
    from ptkube.client import Kube

_INSTALL = {
    POD_MONITORINGS: "managed Prometheus of GKE has it; or serve a fixed number: --replicas N",
    HTTP_SCALED_OBJECTS: "KEDA's HTTP add-on has it; or keep a server running: --replicas 1:N",
    INFERENCE_POOLS: "the Gateway API inference extension has it; or leave out --endpoint-picker",
    HTTP_ROUTES: "the Gateway API has it; or leave out --gateway",
}
Objects = list[tuple[Resource, Manifest]]


def apply(app: App, target: Target, server: Server) -> None:
    """Create a server, or change it to what is asked for now. Raises CliError before anything is written."""
    kube = app.connect(target)
    wanted = [(kind_of(body), body) for body in serving_objects(server)]
    present = _objects(kube, server.namespace, server.name, {kind for kind, _ in wanted})
    _check_ours(present, server.name)
    _check_free(kube, wanted, present)
    names = {(kind, body["metadata"]["name"]) for kind, body in wanted}
    existing = {(kind, body["metadata"]["name"]) for kind, body in present}
    _write(kube, wanted, existing)
    for kind, body in present:
        if (kind, body["metadata"]["name"]) not in names:
            kube.delete(kind, body["metadata"]["name"], server.namespace)
    verb = "updated" if existing else "created"
    app.console.say(f"{verb} {', '.join(kind.kind for kind, _ in wanted)} {server.name}")
    header = f", header 'Host: {server.host}'" if server.spec.replicas.min == 0 else ""
    app.console.say(f"clients in the cluster: {server.url}{header}, model {server.model_name!r}")
    app.console.say(f"from here: kubectl port-forward -n {server.namespace} service/{server.name} 8000")
    app.console.data(server.name)


def _write(kube: Kube, wanted: Objects, existing: set[tuple[Resource, str]]) -> None:
    """Apply the objects; after a failure those that were not there before are deleted again."""
    created: Objects = []
    try:
        for kind, body in wanted:
            kube.apply(kind, body, field_manager=MANAGER)
            if (kind, body["metadata"]["name"]) not in existing:
                created.append((kind, body))
    except ApiError:
        for kind, body in created:
            kube.delete(kind, body["metadata"]["name"], body["metadata"]["namespace"])
        raise


def _check_ours(present: Objects, name: str) -> None:
    owner = next((body for _, body in present if label(body, labels.MANAGED_BY) != MANAGER), None)
    if owner is not None:
        job = label(owner, labels.JOB_SERVED)
        raise InputError(f"server {name!r} is managed by spec.serve of job {job!r}", "it goes with that job")


def _check_free(kube: Kube, wanted: Objects, present: Objects) -> None:
    """Refuse a name that an object of others has."""
    ours = {(kind, body["metadata"]["name"]) for kind, body in present}
    for kind, body in wanted:
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        if (kind, name) not in ours and _exists(kube, kind, name, namespace):
            raise InputError(
                f"{kind.kind} {name!r} in namespace {namespace!r} is not a server's", "choose another --name"
            )


def _exists(kube: Kube, kind: Resource, name: str, namespace: str) -> bool:
    try:
        kube.get(kind, name, namespace)
    except NotFound:
        return False
    return True


def _objects(kube: Kube, namespace: str, name: str, needed: set[Resource]) -> Objects:
    """Return the objects of a server. needed: kinds that the cluster must have. Raises CliError for one it lacks."""
    present: Objects = []
    for kind in KINDS:
        try:
            items = kube.list(kind, namespace, labels=f"{labels.SERVER}={name}").items
        except NotFound as error:
            if kind in needed:
                raise CliError(
                    f"{kind.kind} ({kind.api_version}) is not a kind of this cluster", _INSTALL.get(kind, "")
                ) from error
            continue
        present += [(kind, body) for body in items]
    return present


def delete(app: App, target: Target, name: str) -> None:
    """Delete every object of a server. Raises MissingError, or InputError for one that a job manages."""
    kube = app.connect(target)
    namespace = namespace_of(kube, target) or kube.namespace
    present = _objects(kube, namespace, name, set())
    if not present:
        raise MissingError(
            f"server {name!r} does not exist in namespace {namespace!r}", "`ptctl server list` shows them"
        )
    _check_ours(present, name)
    for kind, body in reversed(present):
        kube.delete(kind, body["metadata"]["name"], namespace)
    app.console.say(f"deleted {', '.join(kind.kind for kind, _ in present)} {name}")


def print_servers(app: App, target: Target, form: str | None) -> None:
    """Print the servers of a namespace, or of all."""
    from ptctl.ui.output import show

    kube = app.connect(target)
    namespace = namespace_of(kube, target)
    items = kube.list(DEPLOYMENTS, namespace, labels=f"{labels.COMPONENT}=server,{labels.NAME}=posttrain").items
    if form:
        show(app.console, items, form, as_list=True)
    elif items:
        app.console.data(table(("NAME", "NAMESPACE", "READY", "MODEL", "JOB"), [_row(each) for each in items]))
    else:
        app.console.say("no servers in " + ("any namespace" if namespace is None else f"namespace {namespace!r}"))


def _row(deployment: Manifest) -> tuple[str, ...]:
    meta, status = deployment["metadata"], deployment.get("status") or {}
    ready = f"{status.get('readyReplicas') or 0}/{deployment['spec'].get('replicas', status.get('replicas') or 0)}"
    return (
        meta["name"],
        meta["namespace"],
        ready,
        model_names(deployment)[0],
        label(deployment, labels.JOB_SERVED) or "-",
    )
