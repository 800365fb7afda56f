"""Stored bodies as answers: plain JSON, Tables for `kubectl get`, or metadata only, by the Accept header.

Plain JSON never parses a body: the stored bytes get apiVersion and kind in front and are joined. Items of a list of a
built-in kind carry neither, as on a real server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.kinds.kinds import Kind
from ptlocal.apiserver.output import events_v1, tables
from ptlocal.apiserver.storage.store import encode

Manifest = dict[str, Any]


class Format(Protocol):
    """How one client wants its answer: `body` is an object as it is stored, `meta` the list's own metadata."""

    def one(self, body: bytes) -> bytes: ...

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes: ...

    def watched(self, body: bytes) -> bytes: ...

    def bookmark(self, meta: Manifest) -> bytes: ...


def choose(accept: str, kind: Kind, include_object: str = "Metadata") -> Format:
    """The first acceptable of what the client asks for."""
    for entry in (accept or "*/*").split(","):
        media, *parameters = [part.strip() for part in entry.split(";")]
        if media not in ("application/json", "*/*", "application/*"):
            continue
        given = dict(p.split("=", 1) for p in parameters if "=" in p)
        shown_as = given.get("as", "")
        if shown_as and (given.get("g") != "meta.k8s.io" or given.get("v") != "v1"):
            continue
        if shown_as == "Table":
            return TableFormat(kind, include_object)
        if shown_as in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return PartialFormat(kind)
        if not shown_as:
            return JsonFormat(kind)
    raise StatusError(406, "NotAcceptable", "only the following media types are accepted: application/json")


class JsonFormat:
    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._prefix = encode({"apiVersion": kind.api_version, "kind": kind.kind})[:-1] + b","

    def one(self, body: bytes) -> bytes:
        return self._prefix + self._view(body)[1:]

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes:
        head = encode({"kind": self._kind.list_name, "apiVersion": self._kind.api_version, "metadata": meta})
        shown = (self.one(body) if self._kind.is_custom else self._view(body) for body in bodies)
        return head[:-1] + b',"items":[' + b",".join(shown) + b"]}\n"

    def watched(self, body: bytes) -> bytes:
        return self.one(body)

    def bookmark(self, meta: Manifest) -> bytes:
        return self._prefix + encode({"metadata": {**meta, "creationTimestamp": None}})[1:]

    def _view(self, body: bytes) -> bytes:
        if self._kind.group != "events.k8s.io":
            return body
        return encode(events_v1.to_new(json.loads(body)))


class PartialFormat:
    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def one(self, body: bytes) -> bytes:
        return encode(tables.partial(json.loads(body)))

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes:
        items = [tables.partial(json.loads(body)) for body in bodies]
        return encode(
            {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items}
        )

    def watched(self, body: bytes) -> bytes:
        return self.one(body)

    def bookmark(self, meta: Manifest) -> bytes:
        return encode(tables.partial({"metadata": meta}))


class TableFormat:
    def __init__(self, kind: Kind, include_object: str) -> None:
        self._kind = kind
        self._include = include_object
        self._sent_columns = False

    def one(self, body: bytes) -> bytes:
        obj = json.loads(body)
        return encode(self._table([obj], {"resourceVersion": obj["metadata"]["resourceVersion"]}))

    def many(self, bodies: Iterable[bytes], meta: Manifest) -> bytes:
        return encode(self._table([json.loads(body) for body in bodies], meta))

    def watched(self, body: bytes) -> bytes:
        """Column definitions go only with a watch's first event."""
        obj = json.loads(body)
        table = self._table([obj], {"resourceVersion": obj["metadata"]["resourceVersion"]})
        if self._sent_columns:
            table["columnDefinitions"] = None
        self._sent_columns = True
        return encode(table)

    def bookmark(self, meta: Manifest) -> bytes:
        table = self._table([], meta)
        table["rows"] = [{"cells": [], "object": {"metadata": {**meta, "creationTimestamp": None}}}]
        return encode(table)

    def _table(self, objects: list[Manifest], meta: Manifest) -> Manifest:
        return tables.table(self._kind, objects, meta, self._include)
