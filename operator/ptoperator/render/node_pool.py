"""The node pool of one slice, or of a job's GPU machines, as `google.container.v1.NodePool` has it.

Pure; one per slice, all or nothing.

`slice_pool` is what every pool of chips has, the operator's and those that `ptctl cluster create` makes to stay.

Facts: slices of several hosts are placed by topology (v4 to v6e) or by a workload policy (tpu7x); a slice of one host
has no placement; GPU machines are placed close to each other. GPU nodes get the latest driver (the trainer's image
needs one for CUDA 13) and the networks of their NICs. Pods per node are few, because 110 would use up a cluster's
addresses. Nodes are repaired, and are upgraded when GKE does so: a cluster's maintenance exclusion keeps that from
runs. Left out: what GKE adds itself (the taints of chips, accelerator and topology labels).
"""

import hashlib
import json

from ptapi.accelerators import Slice
from ptapi.spec import CapacityOption
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render import Layout
from ptoperator.render.pods.pod import SPOT
from ptoperator.render.provisioning_request import FLEX_START_SECONDS
from ptoperator.settings import Settings, gpu_networks

MAX_PODS_PER_NODE = 15
BASIC_CONFIG: Manifest = {
    "oauth_scopes": ["https://www.googleapis.com/auth/cloud-platform"],
    "gvnic": {"enabled": True},
    "workload_metadata_config": {"mode": "GKE_METADATA"},
}
"""What nodes of every kind have."""
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"


def is_flex(option: CapacityOption) -> bool:
    """Return True for flex-start: the pool starts empty and its time runs out."""
    return option.type in ("flexStart", "queuedProvisioning")


def node_pool(layout: Layout, option: CapacityOption, zone: str, slice_index: int, name: str = "") -> Manifest:
    """Return the pool of one slice, or sampler, of a job. name: used if another job holds that of its usual name."""
    name = name or names.node_pool(layout.name, layout.uid, slice_index)
    pool = slice_pool(layout.pool_chips(slice_index), option, zone, name, layout.settings.gpu_networks)
    pool["config"] |= {
        "labels": {labels.POOL_TAINT: "true"},
        "resource_labels": owner_labels(layout, option, zone, slice_index),
        "taints": [{"key": labels.POOL_TAINT, "value": name, "effect": "NO_SCHEDULE"}, *spot_taints(option)],
        **service_account(layout.settings),
    }
    return pool


def slice_pool(accelerator: Slice, option: CapacityOption, zone: str, name: str, networks: str = "") -> Manifest:
    """Return the pool of one slice, without owner and labels. networks: of GPUs (`settings.gpu_networks`).

    flexStart starts empty and grows when its pods wait: Google queues it then; queuedProvisioning, when GKE has all
    that its ProvisioningRequest asks for.
    """
    grows = is_flex(option)
    pool: Manifest = {
        "name": name,
        "initial_node_count": 0 if grows else accelerator.vms,
        "locations": [zone],
        "config": {**_machine(accelerator), **_purchase(option), **BASIC_CONFIG},
        # GKE refuses a pool without upgrades in a cluster with a release channel
        "management": {"auto_upgrade": True, "auto_repair": not grows},
        "max_pods_constraint": {"max_pods_per_node": MAX_PODS_PER_NODE},
    }
    if grows:
        pool["autoscaling"] = {"enabled": True, "total_max_node_count": accelerator.vms, "location_policy": "ANY"}
    if option.type == "queuedProvisioning":
        pool["queued_provisioning"] = {"enabled": True}
    if nics := _nics(accelerator, networks):
        pool["network_config"] = {"additional_node_network_configs": nics}
    placement = _placement(accelerator, option)
    return {**pool, "placement_policy": placement} if placement else pool


def service_account(settings: Settings) -> Manifest:
    """Return the nodes' service account, unless it is the project's default one."""
    return {"service_account": settings.gke_node_service_account} if settings.gke_node_service_account else {}


def owner_labels(layout: Layout, option: CapacityOption, zone: str, slice_index: int) -> dict[str, str]:
    """Return whose pool it is, and of which shape."""
    return {
        labels.POOL_MANAGER: labels.MANAGER,
        labels.POOL_NAMESPACE: layout.namespace,
        labels.POOL_JOB: layout.name,
        labels.POOL_JOB_UID: layout.uid,
        labels.POOL_SLICE: str(slice_index),
        labels.POOL_SHAPE: shape(layout, option, zone, slice_index),
    }


def shape(layout: Layout, option: CapacityOption, zone: str, slice_index: int = 0) -> str:
    """Return `pool_shape` of one of a job's pools."""
    return pool_shape(layout.pool_chips(slice_index), option, zone, layout.settings.gpu_networks)


def pool_shape(accelerator: Slice, option: CapacityOption, zone: str, networks: str = "") -> str:
    """Return a hash of what decides whether a pool fits, not of what a new version might do differently.

    Pods that name networks find no node among those made before the networks were named.
    """
    config = {**_machine(accelerator), **_purchase(option)}
    queued = {"queued": True} if option.type == "queuedProvisioning" else {}
    fit = {
        "config": config,
        "zone": zone,
        "vms": accelerator.vms,
        "placement": _placement(accelerator, option),
        **queued,
        **({"nics": nics} if (nics := _nics(accelerator, networks)) else {}),
    }
    return hashlib.sha256(json.dumps(fit, sort_keys=True).encode()).hexdigest()[:16]


def _purchase(option: CapacityOption) -> Manifest:
    match option.type:
        case "spot":
            return {"spot": True}
        case "flexStart" | "queuedProvisioning":
            return {
                "flex_start": True,
                "max_run_duration": {"seconds": FLEX_START_SECONDS},
                "reservation_affinity": {"consume_reservation_type": "NO_RESERVATION"},
            }
        case "reservation":
            return {
                "reservation_affinity": {
                    "consume_reservation_type": "SPECIFIC_RESERVATION",
                    "key": _RESERVATION_KEY,
                    "values": [option.reservation],
                }
            }
    return {}


def _machine(accelerator: Slice) -> Manifest:
    machine: Manifest = {"machine_type": accelerator.machine_type}
    if not accelerator.is_gpu:
        return machine
    gpus = {
        "accelerator_type": accelerator.gke_accelerator,
        "accelerator_count": accelerator.chips_per_vm,
        "gpu_driver_installation_config": {"gpu_driver_version": "LATEST"},
    }
    return {**machine, "accelerators": [gpus]}


def _nics(accelerator: Slice, networks: str) -> list[Manifest]:
    """Return the networks of the NICs after the first, where machines talk over them."""
    kind = accelerator.fabric
    known = gpu_networks.parse(networks) if kind and kind == gpu_networks.fabric(networks) else ()
    return [{"network": each.network, "subnetwork": each.subnetwork} for each in known]


def _placement(accelerator: Slice, option: CapacityOption) -> Manifest:
    if not accelerator.multi_host:
        return {}
    if accelerator.is_gpu:  # what is queued or reserved is placed by Google, or was when it was reserved
        return {"type_": "COMPACT"} if option.type in ("onDemand", "spot") else {}
    if accelerator.requires_workload_policy:
        return {"policy_name": names.workload_policy(accelerator.generation, accelerator.topology)}
    return {"type_": "COMPACT", "tpu_topology": accelerator.topology}


def spot_taints(option: CapacityOption) -> list[Manifest]:
    """Return the taint of spot VMs, which GKE does not set by itself."""
    return [{"key": SPOT, "value": "true", "effect": "NO_SCHEDULE"}] if option.type == "spot" else []
