"""The run's sandboxes (`spec.sandbox`) as Agent Sandbox has them: a template, a warm pool, claims, and a Service.

The operator makes the claims, so that the trainer, in whose pod a user's code runs, needs no rights in the cluster; it
finds the claimed pods by a headless Service. All is owned by the job and goes with it.

No sandbox starts a connection, and only the job's own pods reach one. `maxPerNode` is a spread of at most that skew
with more domains wanted than there are pods: some domain then counts 0, so no node has more.
"""

from ptapi.spec.rollouts.sandbox import Sandbox
from ptkube.resources import SANDBOX_CLAIMS, SANDBOX_TEMPLATES, SANDBOX_WARM_POOLS, SERVICES, Manifest, Resource
from ptoperator.kube import labels, names
from ptoperator.render.layout import Layout

USER_ID = 1000
"""The user of the runtime's image."""
_REQUESTS = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"}
_LIMITS = {"memory": "2Gi", "ephemeral-storage": "1Gi"}
_EXECUTION_S = 86400
"""The runtime's own limit of an execution: the trainer's are inside it, a request each."""
_PATIENCE = 60
"""Probes in a row that may fail: a runtime that answers one request at a time is silent while a program runs."""


def sandbox_objects(layout: Layout) -> list[tuple[Resource, Manifest]]:
    """Return what claims need, in the order in which it is created."""
    return [
        (SANDBOX_TEMPLATES, sandbox_template(layout)),
        (SANDBOX_WARM_POOLS, sandbox_warm_pool(layout)),
        (SERVICES, sandbox_service(layout)),
    ]


def sandbox_template(layout: Layout) -> Manifest:
    """Return the template of every sandbox of the job."""
    trainers = {"podSelector": {"matchLabels": {labels.JOB: layout.name, labels.JOB_UID: layout.uid}}}
    return {
        "apiVersion": SANDBOX_TEMPLATES.api_version,
        "kind": SANDBOX_TEMPLATES.kind,
        "metadata": _metadata(layout, layout.sandboxes),
        "spec": {
            "podTemplate": {"metadata": {"labels": _labels(layout)}, "spec": _pod(layout)},
            "networkPolicyManagement": "Managed",
            "networkPolicy": {
                "ingress": [{"from": [trainers], "ports": [{"protocol": "TCP", "port": names.SANDBOX_PORT}]}],
                "egress": [],
            },
            "envVarsInjectionPolicy": "Disallowed",
        },
    }


def sandbox_warm_pool(layout: Layout) -> Manifest:
    """Return the pool that keeps further sandboxes ready."""
    return {
        "apiVersion": SANDBOX_WARM_POOLS.api_version,
        "kind": SANDBOX_WARM_POOLS.kind,
        "metadata": _metadata(layout, layout.sandboxes),
        "spec": {"replicas": sandbox_spec(layout).warm, "sandboxTemplateRef": {"name": layout.sandboxes}},
    }


def sandbox_service(layout: Layout) -> Manifest:
    """Return the Service by whose name the trainer finds the claimed sandboxes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(layout, layout.sandboxes),
        "spec": {
            "clusterIP": "None",
            "selector": {labels.SANDBOX_CLAIMED: layout.sandboxes},
            "ports": [{"name": "http", "port": names.SANDBOX_PORT}],
        },
    }


def sandbox_claim(layout: Layout, number: int) -> Manifest:
    """Return a claim; numbers count up over the job's life, so that they count the claims that were made."""
    return {
        "apiVersion": SANDBOX_CLAIMS.api_version,
        "kind": SANDBOX_CLAIMS.kind,
        "metadata": _metadata(layout, names.sandbox_claim(layout.sandboxes, number)),
        "spec": {
            "warmPoolRef": {"name": layout.sandboxes},
            "additionalPodMetadata": {"labels": {labels.SANDBOX_CLAIMED: layout.sandboxes}},
        },
    }


def _pod(layout: Layout) -> Manifest:
    sandbox = sandbox_spec(layout)
    probe = {"httpGet": {"path": "/", "port": names.SANDBOX_PORT}, "failureThreshold": _PATIENCE}
    return {
        "runtimeClassName": sandbox.runtime_class_name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": sandbox.max_per_node,
                "minDomains": sandbox.replicas + sandbox.warm + 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {labels.SANDBOX: layout.sandboxes}},
            }
        ],
        "containers": [
            {
                "name": names.SANDBOX,
                "image": sandbox.image,
                "env": [{"name": "SANDBOX_EXEC_TIMEOUT_SECONDS", "value": str(_EXECUTION_S)}],
                "ports": [{"containerPort": names.SANDBOX_PORT}],
                "readinessProbe": {**probe, "periodSeconds": 5},
                "livenessProbe": {**probe, "periodSeconds": 10},
                "resources": {"requests": _REQUESTS, "limits": _LIMITS},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }


def _metadata(layout: Layout, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": layout.namespace,
        "labels": _labels(layout),
        "ownerReferences": layout.owner_references,
    }


def _labels(layout: Layout) -> dict[str, str]:
    """Return the labels of every object and pod; not those of a job's pods, which train."""
    return {labels.NAME: "posttrain", labels.MANAGED_BY: labels.MANAGER, labels.COMPONENT: names.SANDBOX,
            labels.SANDBOX: layout.sandboxes}  # fmt: skip


def sandbox_spec(layout: Layout) -> Sandbox:
    """Return the job's sandboxes, which it has."""
    sandbox = layout.job.spec.sandbox
    assert sandbox is not None
    return sandbox
