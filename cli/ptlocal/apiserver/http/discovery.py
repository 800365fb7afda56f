"""Discovery: /api, /apis, resource lists, and the aggregated form that kubectl prefers."""

from typing import Any

from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.kinds.registry import Registry

Manifest = dict[str, Any]
_SUBRESOURCE_KIND = {
    "exec": ("", "v1", "PodExecOptions"),
    "log": ("", "v1", "Pod"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "finalize": ("", "v1", "Namespace"),
    "scale": ("autoscaling", "v1", "Scale"),
}
_SUBRESOURCE_VERBS = {
    "exec": ["create", "get"],
    "log": ["get"],
    "binding": ["create"],
    "eviction": ["create"],
    "finalize": ["update"],
    "scale": ["get", "patch", "update"],
}


def api_versions(address: str) -> Manifest:
    """Return /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list(registry: Registry) -> Manifest:
    """Return /apis."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, versions) for name, versions in registry.groups().items() if name],
    }


def group(registry: Registry, name: str) -> Manifest | None:
    """Return one group, or None."""
    versions = registry.groups().get(name)
    return None if versions is None or not name else {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: list[str]) -> Manifest:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(registry: Registry, group_name: str, version: str) -> Manifest | None:
    """Return the resources of a group version, or None."""
    kinds = [k for k in registry.kinds() if (k.group, k.version) == (group_name, version)]
    if not kinds:
        return None
    resources: list[Manifest] = []
    for kind in kinds:
        resources += _resources(kind)
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version, "resources": resources}


def _resources(kind: Kind) -> list[Manifest]:
    main: Manifest = {
        "name": kind.plural,
        "singularName": kind.singular_name,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        main["shortNames"] = list(kind.short_names)
    if kind.categories:
        main["categories"] = list(kind.categories)
    entries = [main]
    for name, of, verbs in _subresources(kind):
        entry: Manifest = {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": of[2],
            "verbs": verbs,
        }
        if of[:2] != (kind.group, kind.version):
            entry["group"], entry["version"] = of[0], of[1]
        entries.append(entry)
    return entries


def _subresources(kind: Kind) -> list[tuple[str, tuple[str, str, str], list[str]]]:
    entries = [(name, _SUBRESOURCE_KIND[name], _SUBRESOURCE_VERBS[name]) for name in kind.subresources]
    if kind.has_status:
        entries.append(("status", (kind.group, kind.version, kind.kind), ["get", "patch", "update"]))
    return entries


def aggregated(registry: Registry, core: bool) -> Manifest:
    """Return the APIGroupDiscoveryList v2 of /api (core) or /apis."""
    items = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [
                {
                    "version": version,
                    "freshness": "Current",
                    "resources": [_aggregated(k) for k in registry.kinds() if (k.group, k.version) == (name, version)],
                }
                for version in versions
            ],
        }
        for name, versions in registry.groups().items()
        if bool(name) != core
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated(kind: Kind) -> Manifest:
    entry: Manifest = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular_name,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    subresources = [
        {"subresource": name, "responseKind": {"group": of[0], "version": of[1], "kind": of[2]}, "verbs": verbs}
        for name, of, verbs in _subresources(kind)
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry
