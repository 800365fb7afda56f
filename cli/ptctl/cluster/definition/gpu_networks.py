"""The networks of GPU machines with several NICs: those that Google's blueprints make, as requests and as a setting.

Pure. As in cluster-toolkit (gke-a3-megagpu, gke-a3-ultragpu): GPUDirect-TCPXO has a VPC of its own for each of eight
NICs; GPUDirect RDMA has one VPC with a RoCE profile of the zone and a subnet for each of eight NICs, and a VPC for the
second gVNIC. They are named after the cluster and hold its GPUs' traffic alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ptkube.resources import Manifest

NICS = 8
KINDS = ("tcpxo", "rdma")
_ALL = "192.168.0.0/16"
_TCPXO_MTU, _ROCE_MTU = 8244, 8896
_GROUP = "networking.gke.io"


@dataclass(frozen=True)
class Vpc:
    """A VPC. subnets: address range by name. is_roce: of RDMA NICs; firewall rules do not apply to it."""

    name: str
    mtu: int
    subnets: dict[str, str]
    is_roce: bool = False


def vpcs(kind: str, cluster: str) -> list[Vpc]:
    """Return the VPCs of a fabric, `tcpxo` or `rdma`, in the order of their NICs."""
    if kind == "tcpxo":
        names = [f"{cluster}-gpu-{nic}" for nic in range(1, NICS + 1)]
        return [Vpc(name, _TCPXO_MTU, {name: f"192.168.{16 * place}.0/20"}) for place, name in enumerate(names)]
    second, roce = f"{cluster}-gvnic-1", f"{cluster}-rdma"
    subnets = {f"{roce}-{nic}": f"192.168.{128 + 8 * nic}.0/21" for nic in range(NICS)}
    return [Vpc(second, _ROCE_MTU, {second: "192.168.64.0/18"}), Vpc(roce, _ROCE_MTU, subnets, is_roce=True)]


def setting(kind: str, cluster: str) -> str:
    """Return what the operator is told of them (POSTTRAIN_GPU_NETWORKS), with the names that pods use."""
    pairs = [(vpc.name, subnet) for vpc in vpcs(kind, cluster) for subnet in vpc.subnets]
    first = ["gvnic-1"] if kind == "rdma" else []
    numbers = range(NICS) if kind == "rdma" else range(1, NICS + 1)
    names = [*first, *(f"{'rdma-' if kind == 'rdma' else 'vpc'}{number}" for number in numbers)]
    return ", ".join(f"{name}={vpc}/{subnet}" for name, (vpc, subnet) in zip(names, pairs, strict=True))


def resources(kind: str, cluster: str, project: str, zone: str) -> Iterator[tuple[str, Manifest]]:
    """Yield (collection below the project, body) of the Compute API for each VPC, its subnets and its firewall rule."""
    region = zone.rpartition("-")[0]
    about = f"made by ptctl for the GPUs of cluster {cluster}"
    for vpc in vpcs(kind, cluster):
        body: Manifest = {"name": vpc.name, "description": about, "autoCreateSubnetworks": False, "mtu": vpc.mtu}
        if vpc.is_roce:
            body["networkProfile"] = f"projects/{project}/global/networkProfiles/{zone}-vpc-roce"
        yield "global/networks", body
        path = f"projects/{project}/global/networks/{vpc.name}"
        for name, addresses in vpc.subnets.items():
            subnet = {"name": name, "description": about, "network": path, "ipCidrRange": addresses}
            yield f"regions/{region}/subnetworks", subnet
        if not vpc.is_roce:
            allowed = [{"IPProtocol": protocol} for protocol in ("tcp", "udp", "icmp")]
            rule = {"name": f"{vpc.name}-internal", "description": about, "network": path, "sourceRanges": [_ALL]}
            yield "global/firewalls", {**rule, "allowed": allowed}


def in_cluster(name: str, network: str, subnetwork: str) -> list[Manifest]:
    """Return the objects by which pods name a network: a GKENetworkParamSet, and a Network of type Device."""
    mode = "RDMA" if name.startswith("rdma") else "NetDevice"
    reference = {"group": _GROUP, "kind": "GKENetworkParamSet", "name": name}
    return [
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "GKENetworkParamSet",
            "metadata": {"name": name},
            "spec": {"vpc": network, "vpcSubnet": subnetwork, "deviceMode": mode},
        },
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "Network",
            "metadata": {"name": name},
            "spec": {"type": "Device", "parametersRef": reference},
        },
    ]
