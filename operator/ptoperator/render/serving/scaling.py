"""Scaling of a server: by the requests that wait, or from nothing by KEDA's HTTP add-on.

The metric of waiting requests is vLLM's own. On GKE managed Prometheus collects it (PodMonitoring), and the custom
metrics adapter hands it to the autoscaler under this name. From no server at all there is no such metric, so there the
add-on's interceptor counts and holds the requests.
"""

from ptkube.resources import AUTOSCALERS, DEPLOYMENTS, HTTP_SCALED_OBJECTS, POD_MONITORINGS, Manifest
from ptoperator.render.serving.server import PORT, Server

WAITING = "vllm:num_requests_waiting"
_ADAPTER_NAME = f"prometheus.googleapis.com|{WAITING}|gauge"
_DOWN_S = 300
"""A server goes when it was not needed for this long: it takes minutes to start another."""


def scaling(server: Server) -> list[Manifest]:
    """Return the objects that change the number of servers; none where it is fixed."""
    replicas = server.spec.replicas
    if replicas.min == replicas.max:
        return []
    return [_http_scaled(server)] if replicas.min == 0 else [_monitoring(server), _autoscaler(server)]


def _target(server: Server) -> Manifest:
    return {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "name": server.name}


def _monitoring(server: Server) -> Manifest:
    return {
        "apiVersion": POD_MONITORINGS.api_version,
        "kind": POD_MONITORINGS.kind,
        "metadata": server.metadata(),
        "spec": {
            "selector": {"matchLabels": server.selector()},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    }


def _autoscaler(server: Server) -> Manifest:
    replicas = server.spec.replicas
    target = {"type": "AverageValue", "averageValue": str(replicas.queue_length)}
    return {
        "apiVersion": AUTOSCALERS.api_version,
        "kind": AUTOSCALERS.kind,
        "metadata": server.metadata(),
        "spec": {
            "scaleTargetRef": _target(server),
            "minReplicas": replicas.min,
            "maxReplicas": replicas.max,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": _ADAPTER_NAME}, "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": _DOWN_S}},
        },
    }


def _http_scaled(server: Server) -> Manifest:
    replicas = server.spec.replicas
    return {
        "apiVersion": HTTP_SCALED_OBJECTS.api_version,
        "kind": HTTP_SCALED_OBJECTS.kind,
        "metadata": server.metadata(),
        "spec": {
            "hosts": [server.host],
            "scaleTargetRef": {**_target(server), "service": server.name, "port": PORT},
            "replicas": {"min": 0, "max": replicas.max},
            "scalingMetric": {"concurrency": {"targetValue": replicas.queue_length}},
            "scaledownPeriod": _DOWN_S,
        },
    }
