"""URL paths of resources, parsed once: /api/v1/namespaces/x/pods/y/log and their like."""

from dataclasses import dataclass

from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.kinds.registry import Registry


@dataclass(frozen=True)
class Target:
    """The target of a request. `namespace` None means all namespaces; an empty `name` means the collection."""

    kind: Kind
    namespace: str | None
    name: str
    subresource: str

    @property
    def space(self) -> str:
        """Return the namespace, or an empty string."""
        return self.namespace or ""


def resolve(registry: Registry, path: str) -> Target | None:
    """Parse a path; return None if it is no resource."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 2 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 3 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if rest and rest[0] == "watch":
        return None
    namespace: str | None = None
    if (
        len(rest) >= 3
        and rest[0] == "namespaces"
        and not (not group and rest[2] in ("status", "finalize") and len(rest) == 3)
    ):
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        return None
    kind = registry.find(group, version, rest[0])
    if kind is None:
        return None
    name = rest[1] if len(rest) > 1 else ""
    if kind.namespaced != (namespace is not None) and (namespace is not None or name):
        return None
    return Target(kind, namespace, name, rest[2] if len(rest) > 2 else "")
