"""The Terraform module: words of the Google provider, and the same cluster as the requests make."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptapi.accelerators import resolve
from ptctl.cluster.definition.requests import cpu_pool, pools
from ptctl.cluster.definition.spec import (
    DRIVERS,
    ChipPools,
    ClusterSpec,
    MaintenanceWindow,
    Network,
    capacity_options,
    maintenance_window,
)
from ptctl.cluster.definition.terraform import module

Invoke = Callable[..., Any]
PROVIDER: dict[str, str] = {
    "google_compute_resource_policy": "name project region",
    "google_compute_resource_policy.workload_policy": "type accelerator_topology",
    "google_container_cluster": "name project location node_locations resource_labels remove_default_node_pool "
    "initial_node_count min_master_version network subnetwork datapath_provider enable_multi_networking",
    "google_container_cluster.release_channel": "channel",
    "google_container_cluster.ip_allocation_policy": "",
    "google_container_cluster.workload_identity_config": "workload_pool",
    "google_container_cluster.addons_config": "",
    **{
        f"google_container_cluster.addons_config.{driver}_config": "enabled"
        for driver in ("gcs_fuse_csi_driver", "gce_persistent_disk_csi_driver", "gcp_filestore_csi_driver",
                       "parallelstore_csi_driver", "lustre_csi_driver")
    },
    "google_container_cluster.control_plane_endpoints_config": "",
    "google_container_cluster.control_plane_endpoints_config.dns_endpoint_config": "allow_external_traffic",
    "google_container_cluster.cluster_autoscaling": "autoscaling_profile",
    "google_container_cluster.private_cluster_config": "enable_private_nodes enable_private_endpoint",
    "google_container_cluster.master_authorized_networks_config": "",
    "google_container_cluster.master_authorized_networks_config.cidr_blocks": "cidr_block",
    "google_container_cluster.maintenance_policy": "",
    "google_container_cluster.maintenance_policy.daily_maintenance_window": "start_time",
    "google_container_cluster.maintenance_policy.recurring_window": "start_time end_time recurrence",
    "google_container_node_pool": "name project location cluster node_locations initial_node_count max_pods_per_node",
    "google_container_node_pool.autoscaling": "total_min_node_count total_max_node_count location_policy",
    "google_container_node_pool.management": "auto_upgrade auto_repair",
    "google_container_node_pool.placement_policy": "type tpu_topology policy_name",
    "google_container_node_pool.network_config": "accelerator_network_profile",
    "google_container_node_pool.network_config.additional_node_network_configs": "network subnetwork",
    "google_container_node_pool.node_config.guest_accelerator": "type count",
    "google_container_node_pool.node_config.guest_accelerator.gpu_driver_installation_config": "gpu_driver_version",
    "google_compute_network": "name project description auto_create_subnetworks mtu network_profile",
    "google_compute_subnetwork": "name project description network region ip_cidr_range",
    "google_compute_firewall": "name project description network source_ranges",
    "google_compute_firewall.allow": "protocol",
    "google_container_node_pool.node_config": "machine_type spot flex_start max_run_duration oauth_scopes "
    "resource_labels labels service_account",
    "google_container_node_pool.node_config.reservation_affinity": "consume_reservation_type key values",
    "google_container_node_pool.node_config.gvnic": "enabled",
    "google_container_node_pool.node_config.workload_metadata_config": "mode",
    "google_container_node_pool.node_config.taint": "key value effect",
}  # fmt: skip
"""The arguments of the Google provider (google/services/container and compute, read at 069a33d4) that are used."""

PLAIN = ClusterSpec("tpus", "p", "us-east5", ("us-east5-a",))


def with_tpus(kind: str, **purchase: Any) -> ClusterSpec:
    flags = {"reservation": None, "spot": False, "flex": False, "on_demand": False, **purchase}
    return replace(PLAIN, chips=ChipPools(resolve(kind), "us-east5-a", capacity_options(2, **flags)))


def with_gpus(kind: str, networks: str) -> ClusterSpec:
    return replace(with_tpus(kind, on_demand=True), gpu_networks=networks)


SPECS = {
    "plain": PLAIN,
    "spot": with_tpus("v6e-16", spot=True),
    "reserved": with_tpus("v5p-128", reservation="r/reservationBlocks/b"),
    "flex, placed by a policy": with_tpus("tpu7x-128", flex=True),
    "everything": replace(
        with_tpus("v5e-4", on_demand=True),
        pathways_machine="n2-standard-64",
        network=Network("n", "s", is_private=True, has_private_endpoint=True, authorized=("10.0.0.0/8", "10.1.0.0/16")),
        drivers=frozenset(DRIVERS),
        version="1.34",
        node_service_account="n@p.iam",
        labels={"team": "a"},
        maintenance=maintenance_window(None, "2026-01-03T02:00:00Z", "2026-01-03T06:00:00Z", "FREQ=DAILY"),
    ),
    "GPUs of one machine": with_tpus("rtx-pro-6000-1", spot=True),
    "GPUs over TCPXO": with_gpus("h100-mega-16", "tcpxo"),
    "GPUs over RDMA": with_gpus("b200-16", "rdma"),
    "GPUs on networks that are there": with_gpus("b200-16", "gvnic-1=v/s, rdma-0=w/t"),
    "daily window": replace(PLAIN, maintenance=MaintenanceWindow(daily="03:00")),
}


def arguments(text: str) -> Iterator[tuple[str, str]]:
    """(path of the block, argument) of everything in the module's resources, or fail at a line that is no HCL."""
    path: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped == "}":
            path.pop()
        elif opened := re.fullmatch(r'(?:resource "(\w+)" "[\w-]+"|(\w+)) \{(\})?', stripped):
            path.append(opened[1] or opened[2])
            yield ".".join(path), ""
            if opened[3]:
                path.pop()
        elif opened := re.fullmatch(r"(\w+) = \{", stripped):
            yield ".".join(path), opened[1]
            path.append("map")
        else:
            assigned = re.fullmatch(r'("[\w./-]+"|\w+) += ("(?:[^"\\]|\\.)*"|\[.*\]|[\w.-]+)', stripped)
            assert assigned, f"no HCL: {line}"
            if path[-1] != "map":
                yield ".".join(path), assigned[1]
    assert path == []


@pytest.mark.parametrize("case", SPECS)
def test_every_block_and_argument_is_one_of_the_provider(case: str) -> None:
    text = module(SPECS[case]).partition("\n\nresource ")[2]
    for path, name in arguments(f"resource {text}"):
        assert path in PROVIDER
        assert not name or name in PROVIDER[path].split(), f"{path}: {name}"


@pytest.mark.parametrize("case", SPECS)
def test_it_makes_the_pools_that_the_requests_make(case: str) -> None:
    spec = SPECS[case]
    text = module(spec)
    names = re.findall(r'^resource "google_container_node_pool" "([\w-]+)"', text, re.MULTILINE)
    assert names == [pool["name"] for pool in [cpu_pool(spec), *pools(spec)]]
    assert '"posttrain-made-by" = "ptctl"' not in text


def test_a_text_is_no_template() -> None:
    text = module(replace(PLAIN, labels={"a": "${path.cwd}%{if x}"}))
    assert '"a"                 = "$${path.cwd}%%{if x}"' in text


def test_the_module_is_written_once_and_never_over_another(invoke: Invoke, tmp_path: Path) -> None:
    words = ("cluster", "create", "tpus", "--project", "p", "--terraform", str(tmp_path / "m"), "--zone")
    assert invoke(*words, "us-east5-a").code == 0
    written = (tmp_path / "m" / "main.tf").read_text()
    assert written == module(PLAIN)
    assert invoke(*words, "us-east5-a").code == 0
    refused = invoke(*words, "us-east5-b")
    assert (refused.code, "main.tf exists and differs" in refused.err) == (2, True)
    assert (tmp_path / "m" / "main.tf").read_text() == written


def test_networks_that_the_module_makes_are_made_before_the_pools_on_them() -> None:
    text = module(with_gpus("h100-mega-16", "tcpxo"))
    made = re.findall(r'^resource "google_compute_(\w+)" "([\w-]+)"', text, re.MULTILINE)
    names = [f"tpus-gpu-{nic}" for nic in range(1, 9)]
    assert [name for kind, name in made if kind == "network"] == names
    assert re.findall(r"network += google_compute_network\.([\w-]+)\.name", text) == names * 2
    assert re.findall(r"subnetwork += google_compute_subnetwork\.([\w-]+)\.name", text) == names * 2
