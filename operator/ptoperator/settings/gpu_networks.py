"""The networks of GPU machines with several NICs, as an administrator names them. Pure.

Each is a Network object of GKE's multi-networking with the VPC and the subnet behind it: pods name the first, node
pools the others. Their order is that of the NICs. Google's names for RDMA are `gvnic-1`, then `rdma-0` to `rdma-7`;
for TCPXO `vpc1` to `vpc8`.
"""

import re
from functools import cache
from typing import NamedTuple

from ptapi.accelerators.table import Fabric

_ENTRY = re.compile(r"([a-z0-9][a-z0-9-]*)=([a-z][a-z0-9-]*)/([a-z][a-z0-9-]*)")
_ACCEPTED = "'rdma-0=VPC/SUBNET, rdma-1=VPC/SUBNET': Network object, VPC and subnet of each NIC after the first"


class GpuNetworksError(ValueError):
    """An invalid setting: says what is wrong and what is accepted."""


class GpuNetwork(NamedTuple):
    """name: of the Network object; network, subnetwork: of the VPC."""

    name: str
    network: str
    subnetwork: str

    @property
    def is_rdma(self) -> bool:
        """Return True for the network of a NIC that only moves GPUs' data."""
        return self.name.startswith("rdma")


def fabric(text: str) -> Fabric:
    """Return the fabric that the networks are for: RDMA where one is of its NICs, else TCPXO; empty for none."""
    known = parse(text)
    return "" if not known else "rdma" if any(each.is_rdma for each in known) else "tcpxo"


@cache
def parse(text: str) -> tuple[GpuNetwork, ...]:
    """Parse the setting; an empty text is no networks. Raises GpuNetworksError."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    matched = [_ENTRY.fullmatch(entry) for entry in entries]
    for entry, match in zip(entries, matched, strict=True):
        if match is None:
            raise GpuNetworksError(f"'{entry[:100]}' is not a network; accepted: {_ACCEPTED}")
    networks = tuple(GpuNetwork(*match.groups()) for match in matched if match is not None)
    if len({each.name for each in networks}) != len(networks):
        raise GpuNetworksError(f"'{text[:100]}' has a network twice; accepted: {_ACCEPTED}")
    return networks
