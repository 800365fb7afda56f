"""Response formats of stored bodies by the Accept header: plain JSON, Tables for `kubectl get`, or metadata only.

Plain JSON never parses a body: the stored bytes get apiVersion and kind in front and are joined. Items of a list of a
built-in kind have neither, as on a real server.
"""

import json
from collections.abc import Iterable
from typing import Any, Protocol

from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.output import events_v1, tables
from ptlocal.apiserver.storage.store import encode

Manifest = dict[str, Any]


class Format(Protocol):
    """A response format. `body` is an object as stored, `meta` the list's metadata."""

    def one(self, body: bytes) -> bytes:
        """Format one object."""

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes:
        """Format a list."""

    def watched(self, body: bytes) -> bytes:
        """Format the object of a watch event."""

    def bookmark(self, meta: Manifest) -> bytes:
        """Format the object of a bookmark."""


def choose(accept: str, kind: Kind, include_object: str = "Metadata") -> Format:
    """Return the first acceptable format of the client's list."""
    for entry in (accept or "*/*").split(","):
        media, *parameters = [part.strip() for part in entry.split(";")]
        if media not in ("application/json", "*/*", "application/*"):
            continue
        media_params = dict(p.split("=", 1) for p in parameters if "=" in p)
        shown_as = media_params.get("as", "")
        if shown_as and (media_params.get("g") != "meta.k8s.io" or media_params.get("v") != "v1"):
            continue
        if shown_as == "Table":
            return TableFormat(kind, include_object)
        if shown_as in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return PartialFormat(kind)
        if not shown_as:
            return JsonFormat(kind)
    raise StatusError(406, "NotAcceptable", "only the following media types are accepted: application/json")


class JsonFormat:
    """Plain JSON."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._prefix = encode({"apiVersion": kind.api_version, "kind": kind.kind})[:-1] + b","

    def one(self, body: bytes) -> bytes:
        """Format one object."""
        return self._prefix + self._view(body)[1:]

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes:
        """Format a list."""
        head = encode({"kind": self._kind.list_name, "apiVersion": self._kind.api_version, "metadata": meta})
        shown = (self.one(body) if self._kind.is_custom else self._view(body) for body in bodies)
        return head[:-1] + b',"items":[' + b",".join(shown) + b"]}\n"

    def watched(self, body: bytes) -> bytes:
        """Format the object of a watch event."""
        return self.one(body)

    def bookmark(self, meta: Manifest) -> bytes:
        """Format the object of a bookmark."""
        return self._prefix + encode({"metadata": {**meta, "creationTimestamp": None}})[1:]

    def _view(self, body: bytes) -> bytes:
        if self._kind.group != "events.k8s.io":
            return body
        return encode(events_v1.to_new(json.loads(body)))


class PartialFormat:
    """Metadata only."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def one(self, body: bytes) -> bytes:
        """Format one object."""
        return encode(tables.partial(json.loads(body)))

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes:
        """Format a list."""
        items = [tables.partial(json.loads(body)) for body in bodies]
        return encode(
            {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items}
        )

    def watched(self, body: bytes) -> bytes:
        """Format the object of a watch event."""
        return self.one(body)

    def bookmark(self, meta: Manifest) -> bytes:
        """Format the object of a bookmark."""
        return encode(tables.partial({"metadata": meta}))


class TableFormat:
    """Tables for `kubectl get`."""

    def __init__(self, kind: Kind, include_object: str) -> None:
        self._kind = kind
        self._include = include_object
        self._sent_columns = False

    def one(self, body: bytes) -> bytes:
        """Format one object."""
        obj = json.loads(body)
        return encode(self._table([obj], {"resourceVersion": obj["metadata"]["resourceVersion"]}))

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes:
        """Format a list."""
        return encode(self._table([json.loads(body) for body in bodies], meta))

    def watched(self, body: bytes) -> bytes:
        """Format the object of a watch event; only the first one has column definitions."""
        obj = json.loads(body)
        table = self._table([obj], {"resourceVersion": obj["metadata"]["resourceVersion"]})
        if self._sent_columns:
            table["columnDefinitions"] = None
        self._sent_columns = True
        return encode(table)

    def bookmark(self, meta: Manifest) -> bytes:
        """Format the object of a bookmark."""
        table = self._table([], meta)
        table["rows"] = [{"cells": [], "object": {"metadata": {**meta, "creationTimestamp": None}}}]
        return encode(table)

    def _table(self, objects: list[Manifest], meta: Manifest) -> Manifest:
        return tables.table(self._kind, objects, meta, self._include)
