"""The pod of a service: vLLM with a model, or a program of an image.

It has no Kubernetes token, none of the trainer's variables and volumes, and for a program, which is somebody else's,
not the trainer's ServiceAccount either, by which the trainer reads buckets. Left out: several hosts.
"""

from ptapi.spec import Service
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.layout import Layout
from ptoperator.render.pods import overrides, resources
from ptoperator.render.pods.beside.vllm_sampler import GPU_IMAGE, TPU_IMAGE
from ptoperator.render.pods.environment_variables import service_env
from ptoperator.render.pods.pod import SHARED_MEMORY_VOLUME, placement, pod_base
from ptoperator.render.serving.deployment import health, probes
from ptoperator.render.serving.weights import FUSE_ANNOTATION, Mounted, mounted, mounts_of, volumes_of

LEAST_LOGPROBS = 20
"""vLLM's own most."""
_PORT = "http"


def pod_template(layout: Layout, service: Service) -> Manifest:
    """Return the pod template; layout: with the chips of one replica."""
    weights = _weights(layout, service)
    annotations = {FUSE_ANNOTATION: "true"} if any(each.bucket for each in weights) else {}
    return {
        "metadata": overrides.metadata(layout, labels.for_service(layout.name, layout.uid), annotations),
        "spec": _pod_spec(layout, service, weights),
    }


def _pod_spec(layout: Layout, service: Service, weights: list[Mounted]) -> Manifest:
    base = pod_base(layout)
    if service.is_program:
        del base["serviceAccountName"]
    tolerations = overrides.tolerations(layout)
    where = {"tolerations": tolerations} if tolerations else {}
    memory = [] if layout.accelerator.is_cpu else [{"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}}]
    volumes = [*memory, *volumes_of(weights)]
    return {
        **base,
        **(where if layout.accelerator.is_cpu else placement(layout)),
        "securityContext": overrides.pod_security(layout),
        "containers": [_container(layout, service, weights)],
        **({"volumes": volumes} if volumes else {}),
    }


def _weights(layout: Layout, service: Service) -> list[Mounted]:
    """Return where the pod finds the model; nothing for a program."""
    return [] if service.model is None else [mounted("", service.model.uri, layout.job.spec.volumes)]


def _container(layout: Layout, service: Service, weights: list[Mounted]) -> Manifest:
    chips = 0 if layout.accelerator.is_cpu else layout.accelerator.chips_per_vm
    memory = [{"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"}] if chips else []
    optional = {
        "command": service.command if service.is_program else ["vllm", "serve", weights[0].path],
        "args": service.args if service.is_program else [*_flags(layout, service, weights[0]), *service.args],
        "volumeMounts": [*memory, *mounts_of(weights)],
    }
    return {
        "name": names.SERVICE,
        "image": service.image or (GPU_IMAGE if layout.accelerator.is_gpu else TPU_IMAGE),
        **{key: value for key, value in optional.items() if value},
        "env": service_env(layout, service),
        "ports": [{"name": _PORT, "containerPort": service.port}],
        "resources": resources.with_chips(layout, resources.trainer_default(layout), chips),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": overrides.container_security(layout),
        **probes(_check(service)),
    }


def _flags(layout: Layout, service: Service, model: Mounted) -> list[str]:
    flags = ["--served-model-name", service.name, "--port", str(service.port)]
    if service.max_model_len is not None:
        flags += ["--max-model-len", str(service.max_model_len)]
    if not layout.accelerator.is_cpu:
        flags += ["--tensor-parallel-size", str(layout.accelerator.devices)]
    if service.model is not None and service.model.revision and not model.path.startswith("/"):
        flags += ["--revision", service.model.revision]
    distill = layout.job.spec.algorithm.distill
    if distill is not None and distill.teacher is not None and distill.teacher.service == service.name:
        flags += ["--max-logprobs", str(max(LEAST_LOGPROBS, distill.top_k))]
    return flags


def _check(service: Service) -> Manifest:
    """Return what a probe asks."""
    if not service.is_program:
        return health(_PORT)
    if service.readiness_path is None:
        return {"tcpSocket": {"port": _PORT}}
    return {"httpGet": {"path": service.readiness_path, "port": _PORT}}
