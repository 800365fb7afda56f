"""TensorBoard in the cluster: one Deployment and one Service per output location and namespace.

All jobs of that location share it, so that their runs stand beside each other. If the administrator names a domain, it
also has an Ingress or a Gateway's route. Every job that asks for it owns all of them, so they are deleted with the last
job. The Deployment starts without a pod; `ptctl workload tensorboard` marks a job, and `plan.tensorboard` scales it up
until that time. It reads the bucket as the trainer does, and satisfies Pod Security "restricted".
"""

import hashlib

from ptkube.resources import HTTP_ROUTES, INGRESSES, Manifest, Resource
from ptoperator.kube import labels
from ptoperator.render.layout import Layout
from ptoperator.settings import ingress
from ptoperator.settings.ingress import Gateway, IngressSettings

PORT = 6006
USER_ID = 65532


def tensorboard_name(output_uri: str) -> str:
    """Return the name of its objects."""
    return f"tensorboard-{hashlib.sha256(output_uri.rstrip('/').encode()).hexdigest()[:8]}"


def tensorboard_deployment(layout: Layout) -> Manifest:
    """Return the Deployment's manifest."""
    name = tensorboard_name(layout.job.spec.output.uri)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(layout, name),
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {labels.TENSORBOARD: name}},
            "template": {"metadata": {"labels": _labels(name)}, "spec": _pod(layout)},
        },
    }


def tensorboard_service(layout: Layout) -> Manifest:
    """Return the Service's manifest."""
    name = tensorboard_name(layout.job.spec.output.uri)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(layout, name),
        "spec": {
            "selector": {labels.TENSORBOARD: name},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def tensorboard_host(layout: Layout) -> str:
    """Return its host outside the cluster; empty if it has none."""
    domain = _ingress_settings(layout).domain
    return f"{tensorboard_name(layout.job.spec.output.uri)}.{layout.namespace}.{domain}" if domain else ""


def route_kind(layout: Layout) -> Resource:
    """Return the kind of object by which it is reached from outside."""
    return HTTP_ROUTES if _ingress_settings(layout).gateway else INGRESSES


def tensorboard_route(layout: Layout) -> Manifest:
    """Return the Ingress or HTTPRoute: one host per output and namespace. It answers 503 while there is no pod."""
    settings = _ingress_settings(layout)
    return _http_route(layout, settings.gateway) if settings.gateway else _ingress(layout)


def _ingress(layout: Layout) -> Manifest:
    name, host, settings = (
        tensorboard_name(layout.job.spec.output.uri),
        tensorboard_host(layout),
        _ingress_settings(layout),
    )
    backend = {"service": {"name": name, "port": {"name": "http"}}}
    spec: Manifest = {
        "rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }
    if settings.class_name:
        spec["ingressClassName"] = settings.class_name
    if settings.tls_secret:
        spec["tls"] = [{"hosts": [host], "secretName": settings.tls_secret}]
    return {
        "apiVersion": INGRESSES.api_version,
        "kind": INGRESSES.kind,
        "metadata": _route_metadata(layout),
        "spec": spec,
    }


def _http_route(layout: Layout, gateway: Gateway) -> Manifest:
    parent = {
        "name": gateway.name,
        **({"namespace": gateway.namespace} if gateway.namespace else {}),
        **({"sectionName": gateway.section} if gateway.section else {}),
    }
    backend = {"name": tensorboard_name(layout.job.spec.output.uri), "port": PORT}
    return {
        "apiVersion": HTTP_ROUTES.api_version,
        "kind": HTTP_ROUTES.kind,
        "metadata": _route_metadata(layout),
        "spec": {
            "parentRefs": [parent],
            "hostnames": [tensorboard_host(layout)],
            "rules": [{"backendRefs": [backend]}],
        },
    }


def _route_metadata(layout: Layout) -> Manifest:
    metadata, annotations = (
        _metadata(layout, tensorboard_name(layout.job.spec.output.uri)),
        _ingress_settings(layout).annotations,
    )
    return {**metadata, "annotations": annotations} if annotations else metadata


def _ingress_settings(layout: Layout) -> IngressSettings:
    return ingress.parse(layout.settings.tensorboard_ingress)


def owner(layout: Layout) -> Manifest:
    """Return the job as one owner among several: none of them is the controller."""
    return {key: layout.owner_references[0][key] for key in ("apiVersion", "kind", "name", "uid")}


def _metadata(layout: Layout, name: str) -> Manifest:
    return {"name": name, "namespace": layout.namespace, "labels": _labels(name), "ownerReferences": [owner(layout)]}


def _labels(name: str) -> Manifest:
    return {labels.NAME: "posttrain", labels.MANAGED_BY: labels.MANAGER, labels.COMPONENT: "tensorboard",
            labels.TENSORBOARD: name}  # fmt: skip


def _pod(layout: Layout) -> Manifest:
    uri = layout.job.spec.output.uri
    return {
        "serviceAccountName": layout.job.spec.service_account_name or layout.settings.trainer_service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "tensorboard",
                "image": layout.settings.tensorboard_image,
                "command": ["tensorboard"],
                "args": ["--logdir", uri, "--host", "0.0.0.0", "--port", str(PORT), "--reload_multifile", "true"],
                "ports": [{"name": "http", "containerPort": PORT}],
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "env": [{"name": "HOME", "value": "/tmp"}],
            }
        ],
    }
