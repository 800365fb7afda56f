"""How requests reach a server: its Service, and through a Gateway a route, to the Service or to an InferencePool.

The pool is of the Gateway API inference extension, whose endpoint picker chooses the server by its queue and cache; it
is a program of its own, installed once for a pool, and named here by its Service.
"""

from ptkube.resources import HTTP_ROUTES, INFERENCE_POOLS, SERVICES, Manifest
from ptoperator.render.serving.server import PORT, Server

PICKER_PORT = 9002
"""Where an endpoint picker answers the Gateway's proxy."""


def service(server: Server) -> Manifest:
    """Return the Service's manifest."""
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": server.metadata(),
        "spec": {
            "selector": server.selector(),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def routes(server: Server) -> list[Manifest]:
    """Return the route of a server with a Gateway, and its pool where an endpoint picker is named."""
    gateway = server.spec.gateway
    if gateway is None:
        return []
    return [*([_pool(server, gateway.endpoint_picker)] if gateway.endpoint_picker else []), _route(server)]


def _pool(server: Server, picker: str) -> Manifest:
    return {
        "apiVersion": INFERENCE_POOLS.api_version,
        "kind": INFERENCE_POOLS.kind,
        "metadata": server.metadata(),
        "spec": {
            "selector": {"matchLabels": server.selector()},
            "targetPorts": [{"number": PORT}],
            "endpointPickerRef": {"name": picker, "port": {"number": PICKER_PORT}},
        },
    }


def _route(server: Server) -> Manifest:
    gateway = server.spec.gateway
    assert gateway is not None
    pool = {"group": INFERENCE_POOLS.group, "kind": INFERENCE_POOLS.kind, "name": server.name}
    backend = pool if gateway.endpoint_picker else {"name": server.name, "port": PORT}
    parent = {"name": gateway.name, **({"namespace": gateway.namespace} if gateway.namespace else {})}
    match = {"path": {"type": "PathPrefix", "value": "/v1"}}
    return {
        "apiVersion": HTTP_ROUTES.api_version,
        "kind": HTTP_ROUTES.kind,
        "metadata": server.metadata(),
        "spec": {
            "parentRefs": [parent],
            **({"hostnames": [gateway.hostname]} if gateway.hostname else {}),
            # An answer may take as long as it takes: a default time limit would cut it.
            "rules": [{"matches": [match], "backendRefs": [backend], "timeouts": {"request": "0s"}}],
        },
    }
