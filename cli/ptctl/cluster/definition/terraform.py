"""The same cluster as a Terraform module: what `requests` asks of GKE, in the words of the Google provider. Pure.

Its resources are labelled as Terraform's, so that `ptctl cluster delete` leaves them alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ptctl.cluster.definition.requests import Request, cluster, cpu_pool, networks, policies, pools
from ptctl.cluster.definition.spec import ClusterSpec, MaintenanceWindow
from ptkube.resources import Manifest
from ptoperator.kube import labels

OWNER = "terraform"
_HEAD = """\
# Written by `ptctl cluster create --terraform`. After `terraform apply`: ptctl cluster install NAME …

terraform {
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.0"
    }
  }
}
"""
_MAPS = ("labels", "resource_labels")
"""Arguments that are maps; every other dictionary is a block."""
_CLUSTER_REF = "google_container_cluster.cluster"


class Reference(str):
    """An expression instead of a text."""

    __slots__ = ()


def module(spec: ClusterSpec) -> str:
    """Return main.tf."""
    parts = [_HEAD.rstrip("\n")]
    for policy in policies(spec):
        parts.append(_resource("google_compute_resource_policy", policy.name, _policy(spec, policy.body)))
    parts += [_network(spec, each) for each in networks(spec)]
    parts.append(_resource("google_container_cluster", "cluster", _cluster(spec)))
    for pool in [cpu_pool(spec), *pools(spec)]:
        parts.append(_resource("google_container_node_pool", pool["name"], node_pool(spec, pool)))
    return "\n\n".join(parts) + "\n"


def _policy(spec: ClusterSpec, body: Manifest) -> Manifest:
    placing = body["workloadPolicy"]
    return {
        "name": body["name"],
        "project": spec.project,
        "region": spec.region,
        "workload_policy": {"type": placing["type"], "accelerator_topology": placing["acceleratorTopology"]},
    }


def _network(spec: ClusterSpec, request: Request) -> str:
    """Return the resource of a VPC, a subnetwork or a firewall rule."""
    body = request.body
    arguments: Manifest = {"name": body["name"], "project": spec.project, "description": body["description"]}
    if request.kind == "network":
        profile = body.get("networkProfile")
        arguments |= {"auto_create_subnetworks": False, "mtu": body["mtu"], "network_profile": profile}
        return _resource("google_compute_network", request.name, arguments)
    arguments["network"] = Reference(f"google_compute_network.{_label(body['network'].rpartition('/')[2])}.id")
    if request.kind == "subnetwork":
        arguments |= {"region": spec.region, "ip_cidr_range": body["ipCidrRange"]}
        return _resource("google_compute_subnetwork", request.name, arguments)
    allow = [{"protocol": each["IPProtocol"]} for each in body["allowed"]]
    arguments |= {"source_ranges": body["sourceRanges"], "allow": allow}
    return _resource("google_compute_firewall", request.name, arguments)


def _cluster(spec: ClusterSpec) -> Manifest:
    body = cluster(spec)
    endpoints = body["control_plane_endpoints_config"]
    networks = endpoints["ip_endpoints_config"].get("authorized_networks_config")
    arguments: Manifest = {
        "name": spec.name,
        "project": spec.project,
        "location": spec.location,
        "node_locations": body.get("locations"),
        "resource_labels": {**spec.labels, labels.MADE_BY: OWNER},
        "remove_default_node_pool": True,
        "initial_node_count": 1,
        "min_master_version": spec.version or None,
        "network": spec.network.name or None,
        "subnetwork": spec.network.subnetwork or None,
        "datapath_provider": body["network_config"]["datapath_provider"],
        "enable_multi_networking": True,
        "release_channel": body["release_channel"],
        "ip_allocation_policy": {},
        "workload_identity_config": body["workload_identity_config"],
        "addons_config": body["addons_config"],
        "control_plane_endpoints_config": {"dns_endpoint_config": endpoints["dns_endpoint_config"]},
        "cluster_autoscaling": body["autoscaling"],
    }
    if spec.network.is_private:
        arguments["private_cluster_config"] = {
            "enable_private_nodes": True,
            "enable_private_endpoint": spec.network.has_private_endpoint,
        }
    if networks:
        arguments["master_authorized_networks_config"] = {"cidr_blocks": networks["cidr_blocks"]}
    if spec.maintenance:
        arguments["maintenance_policy"] = _maintenance(spec.maintenance)
    return arguments


def _maintenance(window: MaintenanceWindow) -> Manifest:
    if window.daily:
        return {"daily_maintenance_window": {"start_time": window.daily}}
    return {"recurring_window": {"start_time": window.start, "end_time": window.end, "recurrence": window.recurrence}}


def node_pool(spec: ClusterSpec, pool: Manifest) -> Manifest:
    """Return a node pool's arguments."""
    config = dict(pool["config"])
    config["resource_labels"] = {**config["resource_labels"], labels.MADE_BY: OWNER}
    config["taint"] = config.pop("taints", None) or None
    config["guest_accelerator"] = _guest_accelerator(config.pop("accelerators", ()))
    if duration := config.get("max_run_duration"):
        config["max_run_duration"] = f"{duration['seconds']}s"
    autoscaling = {key: value for key, value in (pool.get("autoscaling") or {}).items() if key != "enabled"}
    return {
        "name": pool["name"],
        "project": spec.project,
        "location": spec.location,
        "cluster": Reference(f"{_CLUSTER_REF}.name"),
        "node_locations": pool.get("locations"),
        "initial_node_count": pool["initial_node_count"],
        "max_pods_per_node": (pool.get("max_pods_constraint") or {}).get("max_pods_per_node"),
        "autoscaling": autoscaling or None,
        "management": pool["management"],
        "placement_policy": _placement(pool),
        "network_config": _nics(spec, pool),
        "node_config": config,
    }


def _guest_accelerator(accelerators: Sequence[Manifest]) -> list[Manifest] | None:
    names = {"accelerator_type": "type", "accelerator_count": "count"}
    return [{names.get(key, key): value for key, value in each.items()} for each in accelerators] or None


def _nics(spec: ClusterSpec, pool: Manifest) -> Manifest | None:
    """Return the pool's networks; those that this module makes by reference, so that they are made before it."""
    config: Manifest | None = pool.get("network_config")
    if not networks(spec) or config is None or "additional_node_network_configs" not in config:
        return config
    kinds = {"network": "google_compute_network", "subnetwork": "google_compute_subnetwork"}
    nics = [
        {key: Reference(f"{kinds[key]}.{_label(name)}.name") for key, name in nic.items()}
        for nic in config["additional_node_network_configs"]
    ]
    return {"additional_node_network_configs": nics}


def _placement(pool: Manifest) -> Manifest | None:
    placement = pool.get("placement_policy")
    if not placement:
        return None
    if name := placement.get("policy_name"):
        policy = Reference(f"google_compute_resource_policy.{_label(name)}.name")
        return {"type": "COMPACT", "policy_name": policy}
    return {"type": placement["type_"], "tpu_topology": placement.get("tpu_topology")}


def _resource(kind: str, name: str, arguments: Manifest) -> str:
    return "\n".join([f'resource "{kind}" "{_label(name)}" {{', *_body(arguments, 1), "}"])


def _label(name: str) -> str:
    """Return a name that Terraform takes for a resource."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


def _body(arguments: Manifest, depth: int) -> Iterator[str]:
    """Yield arguments, then blocks, each group of arguments aligned as `terraform fmt` does."""
    given = {key: value for key, value in arguments.items() if value is not None}
    blocks = {key: value for key, value in given.items() if _is_block(key, value)}
    yield from _assignments({key: value for key, value in given.items() if key not in blocks}, depth)
    for key, value in blocks.items():
        for each in value if isinstance(value, list) else [value]:
            yield ""
            inner = list(_body(each, depth + 1))
            yield f"{_indent(depth)}{key} {{" + ("" if inner else "}")
            if inner:
                yield from inner[1:] if not inner[0] else inner
                yield f"{_indent(depth)}}}"


def _assignments(arguments: Manifest, depth: int) -> Iterator[str]:
    plain = {key: value for key, value in arguments.items() if not isinstance(value, dict)}
    width = max(map(len, plain), default=0)
    for key, value in plain.items():
        yield f"{_indent(depth)}{key:<{width}} = {_value(value)}"
    for key, value in arguments.items():
        if isinstance(value, dict):
            longest = max(len(_value(each)) for each in value)
            yield f"{_indent(depth)}{key} = {{"
            for name, each in value.items():
                yield f"{_indent(depth + 1)}{_value(name):<{longest}} = {_value(each)}"
            yield f"{_indent(depth)}}}"


def _is_block(key: str, value: Any) -> bool:
    is_blocks = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    return is_blocks or (isinstance(value, dict) and key not in _MAPS)


def _value(value: Any) -> str:
    if isinstance(value, Reference):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("${", "$${").replace("%{", "%%{") if isinstance(value, str) else text


def _indent(depth: int) -> str:
    return "  " * depth
