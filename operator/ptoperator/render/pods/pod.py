"""The trainer's pod: one per VM, one container per process, the same on every host.

Unless `spec.pod` says otherwise (`render.pods.overrides`) it satisfies Pod Security "restricted": no root, no
capabilities, no privilege escalation, no host namespaces, no Kubernetes token. Left to `gpu_fabric`, and not
"restricted": what GPUs of several machines need to reach each other.
"""

from collections.abc import Sequence

from ptapi.spec import Volume
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render.config_map import MOUNT_PATH
from ptoperator.render.layout import Layout
from ptoperator.render.pods import gpu_fabric, overrides, resources
from ptoperator.render.pods.command import process_namespace, program
from ptoperator.render.pods.environment_variables import TERMINATION_LOG, container_env
from ptoperator.render.pods.pod_group import scheduling_group

SPOT = "cloud.google.com/gke-spot"
QUEUED = "cloud.google.com/gke-queued"
"""GKE's taint of nodes that came by queued provisioning."""
QUEUED_CLASS = "queued-provisioning.gke.io"
"""Class of a ProvisioningRequest that GKE answers with all its nodes or none."""
JOB_VOLUME = "posttrain-job"
SHARED_MEMORY_VOLUME = "posttrain-shm"


def pod_template(layout: Layout) -> Manifest:
    """Return the pod template of the replicated job."""
    return {"metadata": chip_metadata(layout), "spec": _pod_spec(layout)}


def chip_metadata(layout: Layout) -> Manifest:
    """Return the metadata of a pod with chips: its owner, and the request by which its nodes came."""
    request = {labels.PROVISIONING_REQUEST: layout.provisioning_request, labels.PROVISIONING_CLASS: QUEUED_CLASS}
    booked = request if layout.is_queued_provisioning else {}
    formed = {labels.TPU_SLICE_TOPOLOGY: layout.accelerator.topology} if layout.is_dynamic else {}
    return overrides.metadata(
        layout, labels.for_pod(layout.name, layout.uid), {**gpu_fabric.annotations(layout), **booked, **formed}
    )


def pod_base(layout: Layout) -> Manifest:
    """Return what every pod of a job has, wherever it runs."""
    spec = layout.job.spec
    optional = {
        "priorityClassName": spec.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.run_policy.termination_grace_period_seconds,
        "serviceAccountName": spec.service_account_name or layout.settings.trainer_service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **{key: value for key, value in optional.items() if value},
    }


def placement(layout: Layout) -> Manifest:
    """Return the placement on nodes with the job's chips, and with what the job asks of them."""
    placement = {
        "nodeSelector": {**(overrides.of(layout).node_selector or {}), **_node_selector(layout)},
        "affinity": overrides.affinity(layout),
        "tolerations": _tolerations(layout) + overrides.tolerations(layout),
    }
    return {key: value for key, value in placement.items() if value}


def exclusive_topology(layout: Layout) -> Manifest:
    """Return the annotation by which no two slices share a node pool; empty where they may."""
    if layout.is_dynamic:  # a slice has several pools, or a part of one: Kueue places its pods
        return {}
    # Pools of single hosts, and of GPU machines, hold many slices, and those may be shared.
    if not layout.accelerator.multi_host or layout.accelerator.is_gpu or layout.is_pathways:
        return {}
    return {labels.EXCLUSIVE_TOPOLOGY: labels.NODE_POOL}


def on_pools(pools: Sequence[str]) -> Manifest:
    """Bind pods to these node pools by what Kueue lets an admission check add.

    Any node of ours, and of those only the ones whose taint is tolerated.
    """
    return {
        "nodeSelector": {labels.POOL_TAINT: "true"},
        "tolerations": [
            {"key": labels.POOL_TAINT, "operator": "Equal", "value": pool, "effect": "NoSchedule"}
            for pool in sorted(pools)
        ],
    }


def pools_of(pod_spec: Manifest) -> tuple[str, ...]:
    """Return the node pools that a pod may run on; none: any."""
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    expressions = [each for term in terms for each in term.get("matchExpressions") or []]
    by_affinity = [name for each in expressions if each["key"] == labels.NODE_POOL for name in each["values"]]
    tolerations = pod_spec.get("tolerations") or []
    by_taint = [each["value"] for each in tolerations if each.get("key") == labels.POOL_TAINT and each.get("value")]
    return (*by_affinity, *by_taint)


def _pod_spec(layout: Layout) -> Manifest:
    return {
        **pod_base(layout),
        **process_namespace(layout),
        **overrides.network(layout),
        **placement(layout),
        **scheduling_group(layout),
        "securityContext": overrides.pod_security(layout),
        **with_init_containers([*gpu_fabric.sidecars(layout), *overrides.init_containers(layout)]),
        "containers": [
            _process(layout, name, index) for index, name in enumerate(names.containers(layout.processes_per_host))
        ],
        "volumes": volumes(layout),
    }


def with_init_containers(containers: list[Manifest]) -> Manifest:
    """Return the field, if there are any."""
    return {"initContainers": containers} if containers else {}


def _process(layout: Layout, name: str, index: int) -> Manifest:
    coordinates = layout.processes > 1 and index == 0
    ports = [{"name": "coordinator", "containerPort": names.COORDINATOR_PORT}] if coordinates else []
    return trainer_container(layout, name, container_env(layout, index), _resources(layout), ports=ports)


def trainer_container(
    layout: Layout,
    name: str,
    env: list[Manifest],
    amounts: Manifest,
    *,
    ports: list[Manifest] | None = None,
    in_head: bool = False,
) -> Manifest:
    """Return a container that runs the trainer, or what the job runs in its place."""
    runs = program(layout)
    container: Manifest = {
        "name": name,
        "image": layout.trainer_image,
        "command": gpu_fabric.command(layout, runs.command),
        "args": list(runs.args),
        "env": env,
    }
    if not runs.args:
        del container["args"]
    if ports:
        container["ports"] = ports
    return {
        **container,
        "resources": amounts,
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": overrides.container_security(layout, in_head=in_head),
        "volumeMounts": _mounts(layout),
    }


def _resources(layout: Layout) -> Manifest:
    chips = 0 if layout.accelerator.is_cpu else layout.accelerator.chips_per_vm // layout.processes_per_host
    return resources.of(layout, "trainer", resources.trainer_default(layout), chips)


def _node_selector(layout: Layout) -> Manifest:
    if layout.accelerator.is_cpu:
        return {}
    nodes = labels.nodes_of(layout.accelerator)
    if layout.is_dynamic:  # the sub-blocks' nodes have no slice's shape yet
        del nodes[labels.TPU_TOPOLOGY]
    return nodes


def _tolerations(layout: Layout) -> list[Manifest]:
    if layout.accelerator.is_cpu:
        return []
    chips = layout.accelerator.resource
    keys = [chips, labels.POOL_TAINT, SPOT] if layout.pools else [chips]
    if layout.quota_first and any(option.type == "spot" for option in layout.job.spec.capacity):
        keys.append(SPOT)
    if layout.pools and any(option.type == "queuedProvisioning" for option in layout.job.spec.capacity):
        keys.append(QUEUED)
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def _mounts(layout: Layout) -> list[Manifest]:
    mounts: list[Manifest] = [{"name": JOB_VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}]
    if not layout.accelerator.is_cpu:
        mounts.append({"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"})
    mounts += gpu_fabric.mounts(layout)
    for volume in layout.job.spec.volumes:
        mount: Manifest = {"name": volume.name, "mountPath": volume.mount_path}
        mounts.append({**mount, "readOnly": True} if volume.read_only else mount)
    return mounts


def volumes(layout: Layout) -> list[Manifest]:
    """Return the volumes of the trainer's pod: the job, shared memory, and what the job asks for."""
    made: list[Manifest] = [{"name": JOB_VOLUME, "configMap": {"name": layout.config_map}}]
    if not layout.accelerator.is_cpu:  # processes of libtpu and NCCL talk through shared memory; the default is 64 MiB
        made.append({"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}})
    made += gpu_fabric.volumes(layout)
    return made + [{"name": volume.name, **_source(volume)} for volume in layout.job.spec.volumes]


def _source(volume: Volume) -> Manifest:
    if volume.config_map:
        return {"configMap": {"name": volume.config_map.name}}
    if volume.secret:
        return {"secret": {"secretName": volume.secret.secret_name}}
    if volume.persistent_volume_claim:
        return {"persistentVolumeClaim": {"claimName": volume.persistent_volume_claim.claim_name}}
    return {"emptyDir": {}}
