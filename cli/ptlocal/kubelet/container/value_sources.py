"""Sources of values: literals, the downward API, ConfigMaps and Secrets, resource fields.

`NotReady` says that something the pod refers to does not exist (yet); the kubelet shows the message and retries.
"""

import base64
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from ptapi.quantity import parse_quantity
from ptkube.resources import Manifest
from ptlocal.kubelet.container.path_rewriting import expand


@dataclass(frozen=True)
class References:
    """Objects in the pod's namespace that it may refer to."""

    find: Callable[[str, str], Manifest | None]
    """Kind (ConfigMap or Secret) and name."""
    token: Callable[[Manifest, Manifest], str]
    """Pod and serviceAccountToken projection -> the token."""


_SUBSCRIPT = re.compile(r"^(metadata\.(?:labels|annotations))\['(.+)'\]$")


class NotReady(Exception):
    """A reference of the pod cannot be resolved now. `reason` is the container's waiting reason."""

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


def environment(pod: Manifest, container: Manifest, node: Manifest, refs: References) -> dict[str, str]:
    """Return the container's variables: env overrides envFrom; each entry may refer to earlier ones."""
    values: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        values.update(_env_from(pod, source, refs))
    for entry in container.get("env") or []:
        if entry.get("valueFrom"):
            value = _value_from(pod, container, node, entry["valueFrom"], refs)
            if value is not None:
                values[entry["name"]] = value
        else:
            values[entry["name"]] = expand(str(entry.get("value") or ""), values)
    return values


def keyed_data(kind: str, item: Manifest) -> dict[str, bytes]:
    """Return the content of a ConfigMap or Secret, decoded."""
    if kind == "Secret":
        data = {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
        return {**data, **{key: value.encode() for key, value in (item.get("stringData") or {}).items()}}
    binary = {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}
    return {**{key: value.encode() for key, value in (item.get("data") or {}).items()}, **binary}


def field_value(pod: Manifest, path: str) -> str:
    """Return the value of the downward API's fieldRef."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    subscript = _SUBSCRIPT.match(path)
    if subscript:
        return str((meta.get(subscript.group(1).split(".")[1]) or {}).get(subscript.group(2)) or "")
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = (meta.get(path.split(".")[1]) or {}).items()
        return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(pairs))
    fields = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.hostIP": status.get("hostIP") or "127.0.0.1",
        "status.hostIPs": status.get("hostIP") or "127.0.0.1",
        "status.podIP": "127.0.0.1",
        "status.podIPs": "127.0.0.1",
    }
    if path not in fields:
        raise NotReady(f"unsupported fieldPath: {path}")
    return str(fields[path] or "")


def resource_value(pod: Manifest, container: Manifest, node: Manifest, ref: Manifest) -> str:
    """Return the value of a resourceFieldRef: a limit or request in units of the divisor, rounded up."""
    if ref.get("containerName"):
        containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
        container = next(c for c in containers if c["name"] == ref["containerName"])
    kind, _, name = ref["resource"].partition(".")
    resources = container.get("resources") or {}
    amount = (resources.get(kind) or {}).get(name)
    if amount is None and kind == "limits":
        amount = node["status"]["allocatable"].get(name, "0")  # no limit means the node's whole capacity
    divisor = parse_quantity(str(ref.get("divisor") or "1")) or 1
    return str(math.ceil(parse_quantity(str(amount or "0")) / divisor))


def _env_from(pod: Manifest, source: Manifest, refs: References) -> dict[str, str]:
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if source.get(field):
            item = _find(refs, kind, source[field])
            data = keyed_data(kind, item) if item else {}
            prefix = source.get("prefix") or ""
            return {prefix + key: value.decode("utf-8", "replace") for key, value in data.items()}
    return {}


def _value_from(pod: Manifest, container: Manifest, node: Manifest, source: Manifest, refs: References) -> str | None:
    if source.get("fieldRef"):
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if source.get("resourceFieldRef"):
        return resource_value(pod, container, node, source["resourceFieldRef"])
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        ref = source.get(field)
        if not ref:
            continue
        item = _find(refs, kind, ref)
        data = keyed_data(kind, item) if item else {}
        if ref["key"] in data:
            return data[ref["key"]].decode("utf-8", "replace")
        if not ref.get("optional"):
            where = f"{kind} {pod['metadata']['namespace']}/{ref['name']}"
            raise NotReady(f"couldn't find key {ref['key']} in {where}")
    return None


def _find(refs: References, kind: str, ref: Manifest) -> Manifest | None:
    item = refs.find(kind, ref["name"])
    if item is None and not ref.get("optional"):
        raise NotReady(f'{kind.lower()} "{ref["name"]}" not found')
    return item


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
