"""The kinds of a CustomResourceDefinition's versions."""

from typing import Any

from ptlocal.apiserver.kinds.builtin_kinds import Column, Kind

Manifest = dict[str, Any]
STORAGE_KEY = "apiextensions.k8s.io/customresourcedefinitions"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_AGE = Column("Age", "date", ".metadata.creationTimestamp")


def kinds_of(crd: Manifest) -> list[Kind]:
    """Return the kinds of the served versions, storage version first."""
    spec = crd["spec"]
    served = [version for version in spec["versions"] if version.get("served")]
    served.sort(key=lambda version: not version.get("storage"))
    return [_kind(spec, version) for version in served]


def _kind(spec: Manifest, version: Manifest) -> Kind:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    columns = [
        Column(c["name"], c["type"], c["jsonPath"], c.get("format", ""), _description(c), c.get("priority", 0))
        for c in version.get("additionalPrinterColumns") or []
    ]
    fields = {f["jsonPath"].lstrip("."): f["jsonPath"].lstrip(".") for f in version.get("selectableFields") or []}
    scale = subresources.get("scale")
    return Kind(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        schema=version["schema"]["openAPIV3Schema"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular", ""),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        has_status="status" in subresources,
        subresources=("scale",) if scale else (),
        fields=fields,
        columns=tuple(columns) or (_AGE,),
        has_generation=True,
        allows_unconditional_update=False,
        is_custom=True,
        list_kind=names.get("listKind", ""),
        scale=scale,
    )


def _description(column: Manifest) -> str:
    return column.get("description") or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}"
