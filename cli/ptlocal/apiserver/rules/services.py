"""Services: a made-up cluster address (nothing routes to it), ports, and immutable fields."""

import zlib

from ptlocal.apiserver.errors import FieldError, not_supported, required
from ptlocal.apiserver.rules.base import Manifest, Rules, unchanged

_TYPES = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]


def _default(service: Manifest) -> None:
    spec = service.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")


def _create(service: Manifest) -> None:
    spec = service["spec"]
    if spec["type"] != "ExternalName":
        if not spec.get("clusterIP"):
            spec["clusterIP"] = _address(service["metadata"]["uid"])
        spec["clusterIPs"] = [spec["clusterIP"]]
    service["status"] = {"loadBalancer": {}}


def _address(uid: str) -> str:
    number = zlib.crc32(uid.encode())
    return f"10.96.{number >> 8 & 255}.{number & 255}"


def _validate(service: Manifest) -> list[FieldError]:
    spec = service["spec"]
    if spec["type"] not in _TYPES:
        return [not_supported("spec.type", spec["type"], _TYPES)]
    if not spec.get("ports") and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        return [required("spec.ports")]
    return []


def _validate_update(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    if new["spec"]["type"] == "ExternalName" or old["spec"]["type"] == "ExternalName":
        return []
    return unchanged("spec.clusterIP", new["spec"].get("clusterIP"), old["spec"].get("clusterIP"))


RULES = Rules(default=_default, create=_create, validate=_validate, validate_update=_validate_update)
