"""The same server as a service of Cloud Run, which has no server while nobody asks: one GPU, weights from a bucket."""

from dataclasses import replace

from ptapi.errors import Finding, SpecError
from ptkube.resources import Manifest
from ptoperator.render.serving.deployment import container, weights_in_pod
from ptoperator.render.serving.server import Server
from ptoperator.render.serving.weights import Mounted, bucket_volume

MACHINES = {"nvidia-l4": ("8", "32Gi"), "nvidia-rtx-pro-6000": ("20", "80Gi")}
"""CPUs and memory for each GPU type that Cloud Run has."""
FUSE_DRIVER = "gcsfuse.run.googleapis.com"
"""Mounts buckets there."""
_START_PERIOD_S, _START_PROBES = 10, 180
_REQUEST_S = 3600
"""Longest answer."""


def cloud_run_service(server: Server) -> Manifest:
    """Return the manifest for `gcloud run services replace`. Raises SpecError for what Cloud Run does not have."""
    gpu = server.spec.gpu
    if gpu is None or gpu.type not in MACHINES or gpu.count != 1:
        value = "unset" if gpu is None else f"{gpu.type}:{gpu.count}"
        raise SpecError([Finding("serve.gpu", value, f"accepted on Cloud Run: one of {', '.join(MACHINES)}, count 1")])
    weights = weights_in_pod(server)
    if any(each.claim for each in weights):
        raise SpecError([Finding("serve", server.weights.model, "accepted on Cloud Run: weights on gs:// or hf://")])
    replicas = server.spec.replicas
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": server.name, "labels": {"posttrain-server": server.name}},
        "spec": {
            "template": {
                "metadata": {
                    "annotations": {
                        "autoscaling.knative.dev/minScale": str(replicas.min),
                        "autoscaling.knative.dev/maxScale": str(replicas.max),
                        "run.googleapis.com/cpu-throttling": "false",
                        "run.googleapis.com/execution-environment": "gen2",
                        "run.googleapis.com/gpu-zonal-redundancy-disabled": "true",
                        "run.googleapis.com/startup-cpu-boost": "true",
                    }
                },
                "spec": _spec(server, gpu.type, weights),
            }
        },
    }


def _spec(server: Server, gpu: str, weights: list[Mounted]) -> Manifest:
    cpus, memory = MACHINES[gpu]
    buckets = [each for each in weights if each.bucket]
    health = {"httpGet": {"path": "/health"}, "periodSeconds": _START_PERIOD_S, "failureThreshold": _START_PROBES}
    own = container(replace(server, token=None), weights, 1)  # a Secret of Kubernetes is none of Cloud Run's
    return {
        "containerConcurrency": server.spec.replicas.queue_length,
        "timeoutSeconds": _REQUEST_S,
        "nodeSelector": {"run.googleapis.com/accelerator": gpu},
        "containers": [
            {
                **own,
                "ports": [{"name": "http1", "containerPort": own["ports"][0]["containerPort"]}],
                "resources": {"limits": {"cpu": cpus, "memory": memory, "nvidia.com/gpu": "1"}},
                "startupProbe": health,
                "volumeMounts": [{"name": each.volume, "mountPath": each.path} for each in buckets],
            }
        ],
        "volumes": [bucket_volume(each, FUSE_DRIVER) for each in buckets],
    }
