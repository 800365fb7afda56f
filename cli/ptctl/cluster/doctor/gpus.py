"""GPU nodes: driver, device plugin, NCCL's plugins, the networks of their NICs, and the exporter that `top` reads.

Silent in a cluster that has no GPU nodes and names no networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptapi.accelerators.slice import GPU_RESOURCE
from ptapi.accelerators.table import Fabric, table
from ptctl.cluster.actions.gpu_use import EXPORTER, EXPORTER_NAMESPACE
from ptctl.cluster.doctor.finding import CheckContext, Finding, error, ok, warning
from ptctl.cluster.doctor.rights import operator_setting
from ptkube.errors import NotFound
from ptkube.objects import label
from ptkube.resources import DEPLOYMENTS, NODES, PODS, Manifest, Resource
from ptoperator.kube import labels
from ptoperator.settings import gpu_networks

CHECK = "gpus"
NETWORKS = Resource("networking.gke.io", "v1", "networks", "Network", namespaced=False)
_PARAMETERS = Resource("networking.gke.io", "v1", "gkenetworkparamsets", "GKENetworkParamSet", namespaced=False)
_DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
_SYSTEM = "kube-system"
_DEVICE_PLUGIN = "k8s-app=nvidia-gpu-device-plugin"
_DRIVER = "cloud.google.com/gke-gpu-driver-version"
"""GKE's label of nodes whose driver it installs."""
_PLUGINS = {"tcpxo": "nccl-tcpxo-installer", "rdma": "nccl-rdma-installer"}
"""Google's DaemonSets (GoogleCloudPlatform/container-engine-accelerators) that put NCCL's plugins on the nodes."""
_PLUGIN_FIX = {
    "tcpxo": "apply gpudirect-tcpxo/nccl-tcpxo-installer.yaml of GoogleCloudPlatform/container-engine-accelerators",
    "rdma": "apply gpudirect-rdma/nccl-rdma-installer.yaml of GoogleCloudPlatform/container-engine-accelerators",
}
_SHOWN = 3


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield what is wrong with GPU nodes, and the networks that the operator is told of."""
    nodes = [node for node in context.kube.list(NODES).items if label(node, labels.GPU_ACCELERATOR)]
    text = _named(context)
    named = gpu_networks.parse(text)
    if nodes:
        yield from _devices(context, nodes)
        yield _exporter(context)
    fabrics = _fabrics(nodes)
    if named:
        yield from _networks(context, [each.name for each in named])
        yield _plugin(context, gpu_networks.fabric(text))
        fabrics -= {gpu_networks.fabric(text)}
    if fabrics:
        yield warning(
            CHECK,
            f"no networks for {' and '.join(sorted(fabrics))} are named: such jobs on several machines talk over the "
            "first NIC, slowly",
            "`ptctl cluster install … --gpu-networks`, or the chart's gpu.networks (docs/guides/gpus.md)",
        )  # fmt: skip


def _named(context: CheckContext) -> str:
    operator = context.survey.operator
    if operator is None:
        return ""
    pod = context.kube.get(DEPLOYMENTS, operator.name, operator.namespace)["spec"]["template"]["spec"]
    return operator_setting(pod, "POSTTRAIN_GPU_NETWORKS")


def _fabrics(nodes: Sequence[Manifest]) -> set[Fabric]:
    of = {facts["gkeAccelerator"]: facts["fabric"] for facts in table().values() if facts["fabric"]}
    return {of[kind] for kind in (label(node, labels.GPU_ACCELERATOR) for node in nodes) if kind in of}


def _devices(context: CheckContext, nodes: Sequence[Manifest]) -> Iterator[Finding]:
    """Yield the nodes whose GPUs are not served to pods, by the reason."""
    without = [node for node in nodes if not int((node["status"].get("allocatable") or {}).get(GPU_RESOURCE) or 0)]
    plugins = {
        pod["spec"].get("nodeName"): pod for pod in context.kube.list(PODS, _SYSTEM, labels=_DEVICE_PLUGIN).items
    }
    broken: dict[tuple[str, str], list[str]] = {}
    for node in without:
        name = node["metadata"]["name"]
        broken.setdefault(_reason(node, plugins.get(name)), []).append(name)
    for (reason, fix), names in broken.items():
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        yield error(CHECK, f"{shown}: no {GPU_RESOURCE}: {reason}", fix)
    if not without:
        yield ok(CHECK, f"{len(nodes)} GPU nodes serve {GPU_RESOURCE}")


def _reason(node: Manifest, plugin: Manifest | None) -> tuple[str, str]:
    """Return why a node serves no GPUs, and what to do."""
    if plugin is None:
        return (
            "no pod of GKE's device plugin runs there",
            "delete the label gke-no-default-nvidia-gpu-device-plugin of that pool, or install NVIDIA's own plugin",
        )
    status = plugin.get("status") or {}
    look = f"kubectl logs -n {_SYSTEM} {plugin['metadata']['name']} --all-containers"
    for each in status.get("initContainerStatuses") or []:
        state = each.get("state") or {}
        waiting = state.get("waiting") or (each.get("lastState") or {}).get("terminated")
        if waiting:
            return f"the driver is not installed ({each['name']}: {waiting.get('reason') or 'it failed'})", look
        if "running" in state:
            return "the driver is being installed", f"it takes minutes; then: {look}"
    if not label(node, _DRIVER):
        return (
            "GKE installs no driver on that pool",
            "make the pool with gpu-driver-version=latest, or install it by Google's nvidia-driver-installer",
        )
    return "the device plugin serves none", look


def _exporter(context: CheckContext) -> Finding:
    if context.kube.list(PODS, EXPORTER_NAMESPACE, labels=EXPORTER).items:
        return ok(CHECK, "GKE's DCGM exporter runs: `ptctl top` shows how busy GPUs are")
    return warning(CHECK, "no pod of GKE's DCGM exporter: `ptctl top` does not show how busy GPUs are",
                   "gcloud container clusters update NAME --monitoring=SYSTEM,DCGM")  # fmt: skip


def _plugin(context: CheckContext, fabric: str) -> Finding:
    """Return whether NCCL's plugin is put on the nodes."""
    name, fix = _PLUGINS[fabric], _PLUGIN_FIX[fabric]
    try:
        status = context.kube.get(_DAEMON_SETS, name, _SYSTEM).get("status") or {}
    except NotFound:
        return warning(
            CHECK, f"DaemonSet {_SYSTEM}/{name} is not there: pods of several GPU machines do not start", fix
        )
    ready, wanted = (int(status.get(key) or 0) for key in ("numberReady", "desiredNumberScheduled"))
    if ready < wanted:
        return warning(CHECK, f"DaemonSet {_SYSTEM}/{name}: {ready} of {wanted} nodes have NCCL's plugin",
                       f"kubectl describe daemonset {name} -n {_SYSTEM}")  # fmt: skip
    return ok(CHECK, f"DaemonSet {_SYSTEM}/{name}: {ready} of {wanted} nodes have NCCL's plugin")


def _networks(context: CheckContext, names: Sequence[str]) -> Iterator[Finding]:
    """Yield the networks that pods would name in vain."""
    try:
        present = {each["metadata"]["name"]: each for each in context.kube.list(NETWORKS).items}
        parameters = {each["metadata"]["name"]: each for each in context.kube.list(_PARAMETERS).items}
    except NotFound:
        yield error(
            CHECK, "this cluster has no multi-networking: pods of several GPU machines cannot reach their NICs",
            "it is chosen at creation: gcloud's --enable-multi-networking, as `ptctl cluster create` does",
        )  # fmt: skip
        return
    missing = [name for name in names if name not in present]
    if missing:
        yield error(
            CHECK, f"networks {', '.join(missing)} are named and not in the cluster: pods that use them stay Pending",
            "`ptctl cluster install … --gpu-networks` makes their objects",
        )  # fmt: skip
    unready = [message for name in names if name in present for message in _unready(parameters.get(name), name)]
    for message in unready:
        yield error(CHECK, message, "does that VPC have that subnet in the cluster's region?")
    if not (missing or unready):
        yield ok(CHECK, f"networks {', '.join(names)} are in the cluster")


def _unready(parameters: Manifest | None, name: str) -> list[str]:
    """Return why GKE does not take a network's VPC and subnet, if it says so."""
    if parameters is None:
        return [f"network {name} has no GKENetworkParamSet {name}"]
    conditions = (parameters.get("status") or {}).get("conditions") or []
    return [
        f"GKENetworkParamSet {name}: {each.get('message') or each.get('reason')}"
        for each in conditions
        if each.get("type") == "Ready" and each.get("status") == "False"
    ]
