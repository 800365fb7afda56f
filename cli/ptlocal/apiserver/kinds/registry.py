"""The kinds that are served now: the built-in ones and those of the CustomResourceDefinitions that exist.

`version` counts changes, so that discovery and OpenAPI documents can be cached by it.
"""

from __future__ import annotations

from ptlocal.apiserver.kinds.kinds import Kind, builtin_kinds


class Registry:
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
        return self._by_path.get((group, version, plural))

    def of_storage(self, storage_key: str) -> Kind | None:
        """Some served version of a stored resource."""
        return self._by_storage.get(storage_key)

    def stored_kind(self, kind: Kind) -> Kind:
        """The kind itself, or for another view of the same objects the one they are stored as."""
        return self._by_storage[kind.storage_key] if kind.storage else kind

    def kinds(self) -> list[Kind]:
        return self._kinds

    def groups(self) -> dict[str, list[str]]:
        """Group -> versions, preferred first."""
        found: dict[str, list[str]] = {}
        for kind in self._kinds:
            versions = found.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return found

    def _rebuild(self) -> None:
        self._kinds = [*self._builtin, *(kind for kinds in self._custom.values() for kind in kinds)]
        self._by_path = {(k.group, k.version, k.plural): k for k in self._kinds}
        self._by_storage: dict[str, Kind] = {}
        for kind in self._kinds:
            self._by_storage.setdefault(kind.storage_key, kind)
        self.version += 1
