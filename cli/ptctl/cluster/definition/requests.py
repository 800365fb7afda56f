"""Every request that makes a cluster, in the order in which they are sent. Pure.

`google.container.v1`'s own field names; labels record who made a resource and, as a hash, from which request.
"""

import hashlib
import json
from dataclasses import dataclass

from ptapi.accelerators import Slice
from ptapi.spec import CapacityOption
from ptctl.cluster.definition import gpu_networks
from ptctl.cluster.definition.spec import ChipPools, ClusterSpec, MaintenanceWindow, Network
from ptkube.resources import Manifest
from ptoperator.capacity.node_pools.pathways_head_pool import head_pool
from ptoperator.kube import labels, names
from ptoperator.render.node_pool import BASIC_CONFIG, pool_shape, service_account, slice_pool, spot_taints
from ptoperator.settings import Settings

MAKER = "ptctl"
CPU_POOL = "cpu-system"
MAX_CPU_NODES = 100
"""The controllers need few nodes; jobs on CPUs and reward pods may need more."""
_SERVICE = "google.container.v1.ClusterManager"
_DRA_DRIVER = "cloud.google.com/gke-networking-dra-driver"
_OWN_INTERFACES = frozenset({"ct6e-standard-4t", "tpu7x-standard-4t"})
"""Machines with interfaces for traffic between slices, which GKE sets up (networks included) where it is asked to."""
_KINDS = {"networks": "network", "subnetworks": "subnetwork", "firewalls": "firewall rule"}
_ADDONS = {
    "filestore": "gcp_filestore_csi_driver_config",
    "parallelstore": "parallelstore_csi_driver_config",
    "lustre": "lustre_csi_driver_config",
}


@dataclass(frozen=True)
class Request:
    """One request. kind: of what it makes: cluster, pool, policy, network, subnetwork or firewall rule.

    collection: of the Compute API, where it is one of that.
    """

    kind: str
    name: str
    method: str
    body: Manifest
    collection: str = ""

    def as_document(self) -> Manifest:
        """Return the request as the dry run prints it."""
        return {"method": self.method, "request": self.body}


def requests(spec: ClusterSpec) -> list[Request]:
    """Return everything that a new cluster needs."""
    made = [*prerequisites(spec), create_cluster(spec)]
    return [*made, *(create_pool(spec, pool) for pool in pools(spec))]


def create_cluster(spec: ClusterSpec) -> Request:
    """Return the request for the cluster, with the nodes that its controllers run on."""
    body = {"parent": spec.parent, "cluster": cluster(spec)}
    return Request("cluster", spec.name, f"{_SERVICE}/CreateCluster", body)


def create_pool(spec: ClusterSpec, pool: Manifest) -> Request:
    """Return the request for a node pool."""
    body = {"parent": spec.path, "node_pool": pool}
    return Request("pool", str(pool["name"]), f"{_SERVICE}/CreateNodePool", body)


def prerequisites(spec: ClusterSpec) -> list[Request]:
    """Return what the Compute API makes before the cluster: a workload policy, networks of GPUs."""
    return [*policies(spec), *networks(spec)]


def networks(spec: ClusterSpec) -> list[Request]:
    """Return the networks of GPUs' NICs, each before what is in it; none where they exist already."""
    if spec.gpu_networks not in gpu_networks.KINDS:
        return []
    made = gpu_networks.resources(spec.gpu_networks, spec.name, spec.project, spec.zones[0])
    requests = [_compute(spec, _KINDS[path.rpartition("/")[2]], path, body) for path, body in made]
    return sorted(requests, key=lambda each: each.kind != "network")  # Google takes a while to make one


def network_setting(spec: ClusterSpec) -> str:
    """Return the networks as the operator and its node pools name them."""
    made = spec.gpu_networks in gpu_networks.KINDS
    return gpu_networks.setting(spec.gpu_networks, spec.name) if made else spec.gpu_networks


def policies(spec: ClusterSpec) -> list[Request]:
    """Return the workload policy by which slices of some generations are placed; clusters of a region share it."""
    slice_ = spec.chips.accelerator if spec.chips else None
    if slice_ is None or not (slice_.multi_host and slice_.requires_workload_policy):
        return []
    name = names.workload_policy(slice_.generation, slice_.topology)
    body = {
        "name": name,
        "description": "made by ptctl; shared by the clusters of this region",
        "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": slice_.topology},
    }
    return [_compute(spec, "policy", f"regions/{spec.region}/resourcePolicies", body)]


def _compute(spec: ClusterSpec, kind: str, path: str, body: Manifest) -> Request:
    collection = f"projects/{spec.project}/{path}"
    return Request(kind, body["name"], f"POST compute/v1/{collection}", body, collection)


def cluster(spec: ClusterSpec) -> Manifest:
    """Return the cluster."""
    network = spec.network
    body: Manifest = {
        "name": spec.name,
        "resource_labels": {**spec.labels, labels.MADE_BY: MAKER, labels.POOL_SHAPE: spec_hash(spec)},
        **({"locations": list(spec.zones)} if spec.zones else {}),
        "release_channel": {"channel": spec.channel.upper()},
        **({"initial_cluster_version": spec.version} if spec.version else {}),
        **({"network": network.name} if network.name else {}),
        **({"subnetwork": network.subnetwork} if network.subnetwork else {}),
        "ip_allocation_policy": {"use_ip_aliases": True},
        "workload_identity_config": {"workload_pool": f"{spec.project}.svc.id.goog"},
        "addons_config": {
            "gcs_fuse_csi_driver_config": {"enabled": True},
            "gce_persistent_disk_csi_driver_config": {"enabled": True},
            **{_ADDONS[driver]: {"enabled": True} for driver in sorted(spec.drivers)},
        },
        "network_config": {
            "datapath_provider": "ADVANCED_DATAPATH",
            "enable_multi_networking": True,
            **({"default_enable_private_nodes": True} if network.is_private else {}),
        },
        "control_plane_endpoints_config": _endpoints(network),
        "autoscaling": {"autoscaling_profile": "OPTIMIZE_UTILIZATION"},
        **({"maintenance_policy": _maintenance(spec.maintenance)} if spec.maintenance else {}),
        "node_pools": [cpu_pool(spec)],
    }
    return body


def spec_hash(spec: ClusterSpec) -> str:
    """Return a hash of what the user decided about the cluster; not of its pools, nor of our own defaults."""
    window = vars(spec.maintenance) if spec.maintenance else {}
    network = spec.network
    decided: list[object] = [spec.path, spec.zones, spec.channel, spec.version, network.name, network.subnetwork]
    decided += [spec.node_service_account, spec.cpu_pool.machine, network.is_private, network.has_private_endpoint]
    decided += [network.authorized, sorted(spec.drivers), window, sorted(spec.labels.items())]
    return hashlib.sha256(json.dumps(decided).encode()).hexdigest()[:16]


def cpu_pool(spec: ClusterSpec) -> Manifest:
    """Return the nodes of the operator, JobSet, Kueue and whatever else needs no chips."""
    return {
        "name": CPU_POOL,
        "initial_node_count": spec.cpu_pool.nodes,
        "config": {
            "machine_type": spec.cpu_pool.machine,
            **BASIC_CONFIG,
            "resource_labels": {labels.MADE_BY: MAKER, labels.POOL_ROLE: "system"},
            **service_account(_settings(spec)),
        },
        "autoscaling": {
            "enabled": True,
            "total_min_node_count": 1,
            "total_max_node_count": max(MAX_CPU_NODES, spec.cpu_pool.nodes),
            "location_policy": "BALANCED",
        },
        "management": {"auto_upgrade": True, "auto_repair": True},
    }


def pools(spec: ClusterSpec) -> list[Manifest]:
    """Return the node pools besides the first: Pathways' heads, and one per slice."""
    made = [head_pool(_settings(spec))] if spec.pathways_machine else []
    for pool in made:
        pool["config"]["resource_labels"][labels.MADE_BY] = MAKER
    chips = spec.chips
    return [*made, *(chip_pool(spec, chips, index) for index in range(len(chips.options)))] if chips else made


def chip_pool(spec: ClusterSpec, chips: ChipPools, index: int) -> Manifest:
    """Return the pool of one slice, which stays until the cluster goes."""
    option, nics = chips.options[index], network_setting(spec)
    pool = slice_pool(chips.accelerator, option, chips.zone, pool_name(chips.accelerator, option, index), nics)
    pool["config"] |= {
        "resource_labels": {
            labels.MADE_BY: MAKER,
            labels.POOL_ROLE: chips.accelerator.platform,
            labels.POOL_SHAPE: pool_shape(chips.accelerator, option, chips.zone, nics),
        },
        "taints": spot_taints(option),
        **service_account(_settings(spec)),
    }
    if chips.accelerator.machine_type in _OWN_INTERFACES:
        pool["config"]["labels"] = {_DRA_DRIVER: "true"}
        pool["network_config"] = {"accelerator_network_profile": "auto"}
    return pool


def pool_name(accelerator: Slice, option: CapacityOption, index: int) -> str:
    """Return the name of a slice's pool: another type or another capacity is another name."""
    tail = {"reservation": "reserved", "spot": "spot", "flexStart": "flex"}.get(option.type, "demand")
    return names.cut(f"{accelerator.name}-{tail}-{index}", names.NODE_POOL_LIMIT)


def _endpoints(network: Network) -> Manifest:
    networks = [{"cidr_block": block} for block in network.authorized]
    limits = network.is_private or bool(networks)
    return {
        "dns_endpoint_config": {"allow_external_traffic": not network.has_private_endpoint},
        "ip_endpoints_config": {
            "enabled": True,
            "enable_public_endpoint": not network.has_private_endpoint,
            **({"authorized_networks_config": {"enabled": True, "cidr_blocks": networks}} if limits else {}),
        },
    }


def _maintenance(window: MaintenanceWindow) -> Manifest:
    if window.daily:
        return {"window": {"daily_maintenance_window": {"start_time": window.daily}}}
    times = {"start_time": window.start, "end_time": window.end}
    return {"window": {"recurring_window": {"window": times, "recurrence": window.recurrence}}}


def _settings(spec: ClusterSpec) -> Settings:
    return Settings(gke_node_service_account=spec.node_service_account, pathways_head_machine=spec.pathways_machine)
