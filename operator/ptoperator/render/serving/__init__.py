"""Render what serves a trained model: vLLM as Deployment and Service, with scaling and a route where asked for. Pure.

`ptctl serve JOB --on gke` and the operator (`spec.serve`) use the same builders. Every object carries `labels.SERVER`
with the server's name, by which all of it is listed, updated and deleted.
"""

from ptkube.resources import (
    AUTOSCALERS,
    DEPLOYMENTS,
    HTTP_ROUTES,
    HTTP_SCALED_OBJECTS,
    INFERENCE_POOLS,
    POD_MONITORINGS,
    SERVICES,
    Manifest,
    Resource,
)
from ptoperator.render.serving.deployment import deployment
from ptoperator.render.serving.routing import routes, service
from ptoperator.render.serving.scaling import scaling
from ptoperator.render.serving.server import Server

__all__ = ["KINDS", "Server", "kind_of", "serving_objects"]

KINDS = (
    DEPLOYMENTS, SERVICES, POD_MONITORINGS, AUTOSCALERS, HTTP_SCALED_OBJECTS, INFERENCE_POOLS, HTTP_ROUTES
)  # fmt: skip
"""Every kind that a server may have an object of."""


def kind_of(body: Manifest) -> Resource:
    """Return the kind of one of a server's objects."""
    return next(kind for kind in KINDS if (kind.api_version, kind.kind) == (body["apiVersion"], body["kind"]))


def serving_objects(server: Server) -> list[Manifest]:
    """Return the objects of a server, in the order in which they are created."""
    return [deployment(server), service(server), *scaling(server), *routes(server)]
