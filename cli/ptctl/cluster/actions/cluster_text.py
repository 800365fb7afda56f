"""Clusters for people: a table, and a page about one."""

from __future__ import annotations

from typing import Any

from ptctl.cluster.cloud.gke import ClusterView, PoolView
from ptctl.ui.table import table
from ptkube.resources import Manifest

_MAKERS = {"ptctl": "ptctl", "posttrain": "the operator, for a job", "": "somebody else"}


def as_document(cluster: ClusterView) -> Manifest:
    """Return everything that GKE reports of a cluster, in the API's JSON names."""
    body: Manifest = type(cluster.raw).to_dict(
        cluster.raw, use_integers_for_enums=False, preserving_proto_field_name=False
    )
    document: Manifest = _without_empty(body)
    return document


def list_table(clusters: list[ClusterView]) -> str:
    """Return one line per cluster."""
    rows = [
        [
            each.name,
            each.location,
            each.state,
            str(each.raw.current_master_version),
            str(len(each.pools)),
            str(each.nodes),
            "ptctl" if each.is_ours else "",
        ]
        for each in sorted(clusters, key=lambda each: (each.name, each.location))
    ]
    return table(["NAME", "LOCATION", "STATUS", "VERSION", "POOLS", "NODES", "MADE BY"], rows)


def page(cluster: ClusterView) -> str:
    """Return a page about one cluster."""
    raw = cluster.raw
    facts = [
        ("Name", cluster.name),
        ("Location", f"{cluster.location} ({', '.join(raw.locations)})"),
        ("Status", f"{cluster.state}{f': {cluster.message}' if cluster.message else ''}"),
        ("Made by", "ptctl" if cluster.is_ours else "somebody else"),
        ("Version", f"{raw.current_master_version} (channel {getattr(raw.release_channel.channel, 'name', '')})"),
        ("Network", "/".join(filter(None, (raw.network, raw.subnetwork)))),
        ("Workload Identity", raw.workload_identity_config.workload_pool or "off"),
        ("Endpoint", raw.control_plane_endpoints_config.dns_endpoint_config.endpoint or raw.endpoint),
        ("Nodes", str(cluster.nodes)),
    ]
    width = max(len(name) for name, _ in facts) + 2
    lines = [f"{name + ':':<{width}}{value}" for name, value in facts]
    return "\n".join([*lines, "", pool_table(cluster.pools)])


def pool_table(pools: tuple[PoolView, ...]) -> str:
    """Return one line per node pool; its failures below."""
    rows = [
        [
            pool.name,
            pool.machine,
            str(pool.nodes),
            ",".join(pool.zones),
            pool.state,
            _MAKERS.get(pool.maker, pool.maker),
        ]
        for pool in pools
    ]
    text = table(["POOL", "MACHINE", "INITIAL", "ZONES", "STATUS", "MADE BY"], rows)
    reasons = [f"{pool.name}: {failure.code}: {failure.message}" for pool in pools for failure in pool.failures]
    return "\n".join([text, *reasons])


def _without_empty(value: Any) -> Any:
    """Leave out what is not set, as Google's JSON does."""
    if isinstance(value, dict):
        pairs = ((key, _without_empty(each)) for key, each in value.items())
        return {key: each for key, each in pairs if each not in (None, "", 0, False, [], {})}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value
