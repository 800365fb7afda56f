"""The Deployment: vLLM with the model on the chips of one machine, ready when it answers /health."""

import copy

from ptapi.accelerators import resolve
from ptapi.accelerators.slice import GPU_RESOURCE, TPU_RESOURCE
from ptkube.resources import DEPLOYMENTS, Manifest
from ptoperator.kube import labels
from ptoperator.render.serving.server import PORT, Server
from ptoperator.render.serving.weights import FUSE_ANNOTATION, Mounted, mounted, mounts_of, volumes_of

TPU_IMAGE = "vllm/vllm-tpu:latest"
GPU_IMAGE = "vllm/vllm-openai:latest"
_LORA_RANKS = (64, 128, 256, 320, 512)
"""Ranks that vLLM can make room for."""
_ADAPTERS = "--lora-modules"
_PROBE_S = 10
_START_S = 3600
"""Longest start: weights of hundreds of gigabytes are read, and a TPU compiles every shape."""
_GRACE_S = 120
"""Time for requests under way when a server ends."""


def deployment(server: Server) -> Manifest:
    """Return the Deployment's manifest. Raises SpecError for weights that no pod can reach."""
    replicas = server.spec.replicas
    # With an autoscaler the number is not ours: applied again, it would undo what that one has decided.
    count = {"replicas": replicas.min} if replicas.min == replicas.max else {}
    return {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": server.metadata(),
        "spec": {
            **count,
            "selector": {"matchLabels": server.selector()},
            # A new server beside the old one would need a second machine with chips, which there may not be.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": _START_S,
            "template": _template(server),
        },
    }


def model_names(deployment: Manifest) -> list[str]:
    """Return the names by which clients ask for the model of a server, and for the adapters beside it."""
    words = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    adapters = words[words.index(_ADAPTERS) + 1 :] if _ADAPTERS in words else []
    return [words[words.index("--served-model-name") + 1], *(word.partition("=")[0] for word in adapters)]


def command(server: Server, weights: list[Mounted], devices: int) -> list[str]:
    """Return vLLM's command line: the model first in `weights`, then the adapters."""
    model, *adapters = weights
    words = ["vllm", "serve", model.path, "--served-model-name", server.model_name, "--port", str(PORT)]
    words += ["--tensor-parallel-size", str(devices)]
    if server.weights.revision and not model.path.startswith("/"):
        words += ["--revision", server.weights.revision]
    if server.spec.max_length is not None:
        words += ["--max-model-len", str(server.spec.max_length)]
    if server.spec.tool_parser is not None:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", server.spec.tool_parser]
    if adapters:
        words += [
            "--enable-lora",
            "--max-lora-rank",
            str(max_lora_rank(server.lora_rank)),
            _ADAPTERS,
            *(f"{each.name}={each.path}" for each in adapters),
        ]
    return words


def max_lora_rank(rank: int) -> int:
    """Return the least rank that vLLM can make room for and that holds adapters of this one."""
    return next((each for each in _LORA_RANKS if each >= rank), _LORA_RANKS[-1])


def probes(check: Manifest) -> Manifest:
    """Return the probes of a container that serves. check: whether it does."""
    failures = {"startupProbe": _START_S // _PROBE_S, "readinessProbe": None, "livenessProbe": 6}
    return {name: _probe(check, most) for name, most in failures.items()}


def _probe(check: Manifest, failures: int | None) -> Manifest:
    most = {} if failures is None else {"failureThreshold": failures}
    return {**copy.deepcopy(check), "timeoutSeconds": 5, "periodSeconds": _PROBE_S, **most}


def health(port: str) -> Manifest:
    """Return the check of a container that runs vLLM; port: its name."""
    return {"httpGet": {"path": "/health", "port": port}}


def weights_in_pod(server: Server) -> list[Mounted]:
    """Return the model, then the adapters, as a pod sees them. Raises SpecError."""
    uris = [("", server.weights.model), *server.weights.adapters.items()]
    return [mounted(name, uri, server.volumes) for name, uri in uris]


def container(server: Server, weights: list[Mounted], devices: int) -> Manifest:
    """Return the container without what differs between Kubernetes and Cloud Run."""
    token = server.token
    secret = {"secretKeyRef": {"name": token.name, "key": token.key}} if token else None
    return {
        "name": "vllm",
        "image": server.spec.image or (TPU_IMAGE if server.spec.tpu else GPU_IMAGE),
        "command": command(server, weights, devices),
        "ports": [{"name": "http", "containerPort": PORT}],
        **({"env": [{"name": "HF_TOKEN", "valueFrom": secret}]} if secret else {}),
    }


def _template(server: Server) -> Manifest:
    weights = weights_in_pod(server)
    has_bucket = any(each.bucket for each in weights)
    annotations = {"annotations": {FUSE_ANNOTATION: "true"}} if has_bucket else {}
    return {"metadata": {"labels": server.labels(), **annotations}, "spec": _pod(server, weights)}


def _pod(server: Server, weights: list[Mounted]) -> Manifest:
    selector, resource, count, devices = _chips(server)
    secrets = [{"name": name} for name in server.image_pull_secrets]
    return {
        "serviceAccountName": server.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        **({"imagePullSecrets": secrets} if secrets else {}),
        "nodeSelector": selector,
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                **container(server, weights, devices),
                "resources": {"requests": {resource: str(count)}, "limits": {resource: str(count)}},
                **probes(health("http")),
                "securityContext": {"allowPrivilegeEscalation": False},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *mounts_of(weights)],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, *volumes_of(weights)],
    }


def _chips(server: Server) -> tuple[Manifest, str, int, int]:
    """Return the node selector, the resource's name, how many of it, and the devices that share the model."""
    if server.spec.gpu is not None:
        gpu = server.spec.gpu
        return {labels.GPU_ACCELERATOR: gpu.type}, GPU_RESOURCE, gpu.count, gpu.count
    assert server.spec.tpu is not None
    tpu = resolve(server.spec.tpu, None, 1)
    return labels.nodes_of(tpu), TPU_RESOURCE, tpu.chips, tpu.devices
