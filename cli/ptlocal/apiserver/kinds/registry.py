"""The kinds that are currently served: the built-in ones and those of existing CustomResourceDefinitions.

`version` counts changes, as a cache key for discovery and OpenAPI documents.
"""

from ptlocal.apiserver.kinds.builtin_kinds import Kind, builtin_kinds


class Registry:
    """The served kinds."""

    def __init__(self) -> None:
        self._builtin = builtin_kinds()
        self._custom: dict[str, list[Kind]] = {}
        self.version = 0
        self._rebuild()

    def set_custom(self, crd_name: str, kinds: list[Kind]) -> None:
        """Serve the versions of one definition; an empty list stops serving it."""
        self._custom.pop(crd_name, None)
        if kinds:
            self._custom[crd_name] = kinds
        self._rebuild()

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind, or None if it is not served."""
        return self._by_path.get((group, version, plural))

    def of_storage(self, storage_key: str) -> Kind | None:
        """Return any served version of a stored resource."""
        return self._by_storage.get(storage_key)

    def stored_kind(self, kind: Kind) -> Kind:
        """Return the kind under which the objects are stored: another one for a view of the same objects."""
        return self._by_storage[kind.storage_key] if kind.storage else kind

    def kinds(self) -> list[Kind]:
        """Return all served kinds."""
        return self._kinds

    def groups(self) -> dict[str, list[str]]:
        """Return group -> versions, preferred first."""
        groups: dict[str, list[str]] = {}
        for kind in self._kinds:
            versions = groups.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return groups

    def _rebuild(self) -> None:
        self._kinds = [*self._builtin, *(kind for kinds in self._custom.values() for kind in kinds)]
        self._by_path = {(k.group, k.version, k.plural): k for k in self._kinds}
        self._by_storage: dict[str, Kind] = {}
        for kind in self._kinds:
            self._by_storage.setdefault(kind.storage_key, kind)
        self.version += 1
