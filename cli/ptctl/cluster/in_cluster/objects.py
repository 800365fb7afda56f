"""The objects of an installation, from the rendered chart and the values that differ between clusters. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from ptapi.accelerators import Slice
from ptapi.crd.definition import crd
from ptctl.cluster.definition.gpu_networks import in_cluster
from ptkube.resources import Manifest
from ptoperator.capacity.node_pools.pathways_head_pool import MAX_PATHWAYS_HEADS
from ptoperator.kube import labels
from ptoperator.settings import gpu_networks

MAKER = "ptctl"
NAMESPACE = "posttrain-system"
OPERATOR = "posttrain-operator"
"""Name of the Deployment, of its ServiceAccount and of the ClusterRole."""
QUEUE = "posttrain"
"""Name of the ClusterQueue and of the LocalQueues."""
CHECK = "posttrain-node-pools"
"""Name of the AdmissionCheck that the operator answers."""
_GKE_RULES = ("provisioningrequests", "podtemplates")
"""Resources that the operator's role has with GKE only."""
_GKE_POOL_SETTINGS = (
    "POOL_IDLE_SECONDS",
    "SHARE_POOLS",
    "CAPACITY_BACKOFF_SECONDS",
    "CAPACITY_ROUNDS",
    "CLOUD_POLL_SECONDS",
)
_KUEUE = "kueue.x-k8s.io/v1beta2"
_HEAD_CPUS, _HEAD_MEMORY_GB = 48, 232


@dataclass(frozen=True)
class GkeCluster:
    """Which cluster of GKE it is, for the operator to make node pools in."""

    project: str
    location: str
    name: str


@dataclass(frozen=True)
class Quota:
    """Chips of one type that jobs may use at the same time."""

    slice_: Slice

    @property
    def chips(self) -> int:
        """Return how many."""
        return self.slice_.total_chips


@dataclass(frozen=True)
class Values:
    """What differs between clusters. image: of the operator."""

    image: str
    trainer_image: str
    gke: GkeCluster | None = None
    operator_account: str = ""
    node_account: str = ""
    quotas: tuple[Quota, ...] = ()
    gpu_trainer_image: str = ""
    gpu_networks: str = ""
    queue_namespaces: tuple[str, ...] = ("default",)


def operator_objects(values: Values) -> list[Manifest]:
    """Return the CRD, the namespace, and what the chart makes with these values."""
    definition = crd()
    definition["metadata"]["labels"] = {labels.MANAGED_BY: MAKER}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return [definition, _own(namespace), *(_fill(body, values) for body in _chart())]


def queue_objects(values: Values) -> list[Manifest]:
    """Return Kueue's flavors, quota and queues for the types that jobs may use."""
    if not values.quotas:
        return []
    made = [*(_flavor(each) for each in values.quotas), _cpu_flavor()]
    made += [_admission_check()] if values.gke else []
    made.append(_cluster_queue(values))
    return [_own(body) for body in [*made, *(_local_queue(each) for each in values.queue_namespaces)]]


def network_objects(values: Values) -> list[Manifest]:
    """Return the objects by which pods name the networks of GPUs' NICs. The cluster has multi-networking."""
    named = gpu_networks.parse(values.gpu_networks)
    return [_own(body) for each in named for body in in_cluster(each.name, each.network, each.subnetwork)]


def all_objects(values: Values) -> list[Manifest]:
    """Return everything, in the order in which it is applied."""
    return [*operator_objects(values), *queue_objects(values), *network_objects(values)]


@cache
def _chart_text() -> str:
    return resources.files(__package__).joinpath("chart.yaml").read_text(encoding="utf-8")


def _chart() -> list[Manifest]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [copy.deepcopy(body) for body in yaml.load_all(_chart_text(), loader)]


def _own(body: Manifest) -> Manifest:
    """Mark an object as ptctl's, where the chart own_labels it as Helm's."""
    own_labels = body["metadata"].setdefault("labels", {})
    own_labels[labels.MANAGED_BY] = MAKER
    own_labels.pop("helm.sh/chart", None)
    return body


def _fill(body: Manifest, values: Values) -> Manifest:
    """Put the values into an object of the chart."""
    _own(body)
    match body["kind"]:
        case "ServiceAccount" if values.operator_account:
            body["metadata"]["annotations"] = {"iam.gke.io/gcp-service-account": values.operator_account}
        case "ClusterRole" if values.gke is None:
            body["rules"] = [rule for rule in body["rules"] if not set(rule["resources"]) & set(_GKE_RULES)]
        case "Deployment":
            template = body["spec"]["template"]
            _own(template)
            container = template["spec"]["containers"][0]
            container["image"] = values.image
            container["env"] = list(_environment(container["env"], values))
    return body


def _environment(entries: list[Manifest], values: Values) -> Iterator[Manifest]:
    gke = values.gke
    filled = {
        "POSTTRAIN_TRAINER_IMAGE": values.trainer_image,
        "POSTTRAIN_GKE_PROJECT": gke.project if gke else None,
        "POSTTRAIN_GKE_LOCATION": gke.location if gke else None,
        "POSTTRAIN_GKE_CLUSTER": gke.name if gke else None,
        "POSTTRAIN_GKE_NODE_SERVICE_ACCOUNT": values.node_account if gke else None,
        **({"POSTTRAIN_GPU_TRAINER_IMAGE": values.gpu_trainer_image} if values.gpu_trainer_image else {}),
        "POSTTRAIN_GPU_NETWORKS": values.gpu_networks,
        **({} if gke else {f"POSTTRAIN_{name}": None for name in _GKE_POOL_SETTINGS}),
    }
    for entry in entries:
        if entry["name"] not in filled:
            yield entry
        elif (value := filled[entry["name"]]) is not None:
            yield {"name": entry["name"], "value": value}


def _flavor(quota: Quota) -> Manifest:
    return {
        "apiVersion": _KUEUE,
        "kind": "ResourceFlavor",
        "metadata": {"name": quota.slice_.name},
        "spec": {"nodeLabels": labels.nodes_of(quota.slice_)},
    }


def _cpu_flavor() -> Manifest:
    return {"apiVersion": _KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "posttrain-cpu"}, "spec": {}}


def _admission_check() -> Manifest:
    spec = {"controllerName": labels.POOLS_CHECK}
    return {"apiVersion": _KUEUE, "kind": "AdmissionCheck", "metadata": {"name": CHECK}, "spec": spec}


def _cluster_queue(values: Values) -> Manifest:
    """Return the quota: chips by type; CPUs and memory for Pathways' heads, as many as their pool has nodes."""
    kinds = dict.fromkeys(each.slice_.resource for each in values.quotas)
    chips = {
        kind: [
            {"name": each.slice_.name, "resources": [{"name": kind, "nominalQuota": each.chips}]}
            for each in values.quotas
            if each.slice_.resource == kind
        ]
        for kind in kinds
    }
    heads = [
        {"name": "cpu", "nominalQuota": _HEAD_CPUS * MAX_PATHWAYS_HEADS},
        {"name": "memory", "nominalQuota": f"{_HEAD_MEMORY_GB * MAX_PATHWAYS_HEADS}G"},
    ]
    spec: Manifest = {
        "namespaceSelector": {},
        "resourceGroups": [
            *({"coveredResources": [kind], "flavors": flavors} for kind, flavors in chips.items()),
            {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "posttrain-cpu", "resources": heads}]},
        ],
    }
    if values.gke:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": CHECK}]}
    return {"apiVersion": _KUEUE, "kind": "ClusterQueue", "metadata": {"name": QUEUE}, "spec": spec}


def _local_queue(namespace: str) -> Manifest:
    return {
        "apiVersion": _KUEUE,
        "kind": "LocalQueue",
        "metadata": {"name": QUEUE, "namespace": namespace},
        "spec": {"clusterQueue": QUEUE},
    }
