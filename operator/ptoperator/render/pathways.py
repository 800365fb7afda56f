"""The two replicated jobs of a Pathways run: a head on a CPU node, and one worker Job per slice, one pod per TPU VM.

One process, the trainer in the head, sees all chips through the proxy beside it. Resource manager and proxy are
native sidecars (init containers that go on running), so the head ends when the trainer does. The head's end is the
run's end, by success as by exit code; a worker that goes away ends the attempt, because its part of the program is
lost. The servers' arguments, ports and variables are those of Google's own builder,
`pathwaysutils.experimental.gke.jobset`; a test holds the list of what is different on purpose.

Headless, the servers are all there is. With elastic slices a lost worker ends nothing: its Job makes it anew.
"""

from ptapi.accelerators import compiler_flags
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.failure_policy import disruption_policy, ignored_disruption_policy, pod_failure_policy
from ptoperator.render.layout import Layout
from ptoperator.render.pods import overrides, resources
from ptoperator.render.pods.command import process_namespace
from ptoperator.render.pods.environment_variables import controller_env, from_annotation, from_label, value
from ptoperator.render.pods.pod import (
    chip_metadata,
    placement,
    pod_base,
    trainer_container,
    volumes,
    with_init_containers,
)

_SCRATCH = ".pathways"
_TMP = "shared-tmp"


def replicated_jobs(layout: Layout) -> list[Manifest]:
    """Return the head, then the workers: JobSet starts them in this order."""
    return [
        {"name": names.PATHWAYS_HEAD, "replicas": 1, "template": _head_job(layout)},
        {"name": names.PATHWAYS_WORKER, "replicas": layout.slices, "template": _worker_job(layout)},
    ]


def _head_job(layout: Layout) -> Manifest:
    if layout.is_headless:
        return _servers_alone(layout)
    spec = {
        **pod_base(layout),
        **process_namespace(layout),
        **_on_head_nodes(layout),
        "securityContext": overrides.head_security(layout),
        "initContainers": [
            *overrides.init_containers(layout, in_head=True),
            *({**server, "restartPolicy": "Always"} for server in _servers(layout)),
        ],
        "containers": [_controller(layout)],
        "volumes": volumes(layout),
    }
    return _job(layout, "kubernetes.io/hostname", 1, pod_failure_policy(), _head_pod(layout, spec))


def _servers_alone(layout: Layout) -> Manifest:
    """Return a headless run's head: only the servers run, and the program is elsewhere."""
    spec = {
        **pod_base(layout),
        **_on_head_nodes(layout),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": _servers(layout),
    }
    return _job(layout, "kubernetes.io/hostname", 1, disruption_policy(), _head_pod(layout, spec))


def _on_head_nodes(layout: Layout) -> Manifest:
    tolerations = overrides.tolerations(layout)
    return {
        **overrides.network(layout),
        "nodeSelector": {labels.NODE_POOL: layout.settings.pathways_head_nodes},
        **({"tolerations": tolerations} if tolerations else {}),
    }


def _head_pod(layout: Layout, spec: Manifest) -> Manifest:
    return {"metadata": overrides.metadata(layout, labels.for_pod(layout.name, layout.uid)), "spec": spec}


def _servers(layout: Layout) -> list[Manifest]:
    return [_resource_manager(layout), _proxy(layout)]


def _worker_job(layout: Layout) -> Manifest:
    spec = {
        **pod_base(layout),
        **overrides.network(layout),
        **placement(layout),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        **with_init_containers(_sidecars(layout)),
        "containers": [_worker(layout)],
        "volumes": [{"name": _TMP, "emptyDir": {}}],
    }
    pod = {"metadata": chip_metadata(layout), "spec": spec}
    one_per = "" if layout.is_dynamic else labels.NODE_POOL  # Kueue places the pods of dynamic slices
    if not layout.job.spec.pathways.elastic_slices:
        return _job(layout, one_per, layout.hosts, disruption_policy(), pod)
    # The program goes on without a slice: its Job brings the pods back, and the others are left alone.
    restarts = layout.hosts * layout.job.spec.run_policy.max_restarts
    return _job(layout, one_per, layout.hosts, ignored_disruption_policy(), pod, restarts)


def _job(layout: Layout, one_per: str, pods: int, policy: Manifest, template: Manifest, restarts: int = 0) -> Manifest:
    return {
        "metadata": {
            "labels": labels.for_job(layout.name, layout.uid),
            **({"annotations": {labels.EXCLUSIVE_TOPOLOGY: one_per}} if one_per else {}),
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": restarts,
            "podFailurePolicy": policy,
            "template": template,
        },
    }


def _controller(layout: Layout) -> Manifest:
    amounts = resources.of(layout, "trainer", resources.HEAD)
    return trainer_container(layout, names.CONTAINER, controller_env(layout), amounts, in_head=True)


def _resource_manager(layout: Layout) -> Manifest:
    return {
        "name": "pathways-rm",
        "image": _server_image(layout),
        "args": [
            f"--server_port={names.PATHWAYS_RM_PORT}",
            f"--gcs_scratch_location={_scratch(layout)}",
            "--node_type=resource_manager",
            f"--instance_count={layout.slices}",
            f"--instance_type={layout.accelerator.pathways_instance_type}",
            *layout.job.spec.pathways.server_args,
        ],
        "env": [
            from_annotation("REPLICATED_JOB_NAME", labels.REPLICATED_JOB_NAME),
            from_annotation("JOBSET_NAME", labels.JOBSET_NAME),
            from_label("HOST_ADDRESS", labels.COORDINATOR),
            value("TPU_SKIP_MDS_QUERY", "true"),
        ],
        "ports": _ports(names.PATHWAYS_RM_PORT, 29002),
        "resources": resources.of(layout, "pathways_resource_manager", resources.RESOURCE_MANAGER),
    }


def _proxy(layout: Layout) -> Manifest:
    return {
        "name": "pathways-proxy",
        "image": layout.job.spec.pathways.proxy_image or layout.settings.pathways_proxy_image,
        "args": [
            f"--server_port={names.PATHWAYS_PROXY_PORT}",
            f"--resource_manager_address=$(PATHWAYS_HEAD):{names.PATHWAYS_RM_PORT}",
            f"--gcs_scratch_location={_scratch(layout)}",
            *_elastic_flags(layout),
            *_compiler_flags(layout),
            *layout.job.spec.pathways.proxy_args,
        ],
        "env": [
            from_label("PATHWAYS_HEAD", labels.COORDINATOR),
            value("IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "true"),
        ],
        "ports": _ports(names.PATHWAYS_PROXY_PORT),
        "resources": resources.of(layout, "pathways_proxy", resources.PROXY),
    }


def _compiler_flags(layout: Layout) -> list[str]:
    """Return the compiler's flags: the proxy compiles."""
    return compiler_flags.arguments(compiler_flags.of_job(layout.job.spec))


def _worker(layout: Layout) -> Manifest:
    return {
        "name": "pathways-worker",
        "image": _server_image(layout),
        "args": [
            f"--resource_manager_address=$(PATHWAYS_HEAD):{names.PATHWAYS_RM_PORT}",
            f"--server_port={names.PATHWAYS_WORKER_PORT}",
            f"--gcs_scratch_location={_scratch(layout)}",
            *layout.job.spec.pathways.worker_args,
        ],
        "env": [
            value("TPU_MIN_LOG_LEVEL", "0"),
            value("TF_CPP_MIN_LOG_LEVEL", "0"),
            value("XCLOUD_ENVIRONMENT", "GCP"),
            value("MEGASCALE_GRPC_ENABLE_XOR_TRACER", "false"),
            from_label("MEGASCALE_NUM_SLICES", labels.REPLICATED_JOB_REPLICAS),
            from_annotation("JOBSET_NAME", labels.JOBSET_NAME),
            from_annotation("REPLICATED_JOB_NAME", labels.REPLICATED_JOB_NAME),
            from_label("MEGASCALE_SLICE_ID", labels.JOB_INDEX),
            from_label("PATHWAYS_HEAD", labels.COORDINATOR),
            from_label("MEGASCALE_COORDINATOR_ADDRESS", labels.COORDINATOR),
        ],
        "ports": _ports(names.PATHWAYS_WORKER_PORT, 29006, 8471, 8080),
        "resources": resources.of(layout, "pathways_worker", {}, layout.accelerator.chips_per_vm),
        **overrides.worker_security(layout),
        "volumeMounts": [{"name": _TMP, "mountPath": "/tmp"}],
    }


def _elastic_flags(layout: Layout) -> list[str]:
    missing = layout.job.spec.pathways.elastic_slices
    return [f"--num_elastic_slices={missing}"] if missing else []


def _sidecars(layout: Layout) -> list[Manifest]:
    """Return colocated Python: the worker passes it functions of the trainer through a shared /tmp."""
    image = layout.job.spec.pathways.colocated_python_image
    if image is None:
        return []
    amounts = resources.of(layout, "colocated_python", {})
    sidecar = {
        "name": "colocated-python-sidecar",
        "image": image,
        "restartPolicy": "Always",
        "env": [value("GRPC_SERVER_ADDRESS", f"0.0.0.0:{names.PATHWAYS_SIDECAR_PORT}"), value("PYTHONUNBUFFERED", "1")],
        "ports": _ports(names.PATHWAYS_SIDECAR_PORT),
        **({"resources": amounts} if amounts else {}),
        "volumeMounts": [{"name": _TMP, "mountPath": "/tmp"}],
    }
    return [sidecar]


def _server_image(layout: Layout) -> str:
    return layout.job.spec.pathways.server_image or layout.settings.pathways_server_image


def _scratch(layout: Layout) -> str:
    """Return a directory beside the runs, unless the administrator names a bucket."""
    return layout.settings.pathways_scratch or f"{layout.job.spec.output.uri.rstrip('/')}/{_SCRATCH}"


def _ports(*numbers: int) -> list[Manifest]:
    return [{"containerPort": number, "protocol": "TCP"} for number in numbers]
