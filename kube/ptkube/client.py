"""Verbs of the API server on raw manifests, over the official client's connections.

Synchronous and safe to share between threads (asyncio callers use a thread). It knows URLs, patches, watches and
errors, nothing about any kind. Left out: discovery, typed models (they refuse fields newer than themselves), caching
(see `informer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

from ptkube import kubeconfig as kubeconfigs
from ptkube.errors import (
    AlreadyExists,
    ApiError,
    ConfigError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
    Unreachable,
    from_response,
    parsed,
    unusable,
)
from ptkube.http import READ_TIMEOUT_S, Transport
from ptkube.kubeconfig import Access
from ptkube.resources import PODS, Manifest, Resource

__all__ = [
    "AlreadyExists",
    "ApiError",
    "ConfigError",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "Kube",
    "ListResult",
    "Manifest",
    "NotFound",
    "Propagation",
    "Resource",
    "Unauthorized",
    "Unreachable",
]

Propagation = Literal["Background", "Foreground", "Orphan"]

_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
_PAGE = 500  # what kubectl uses; keeps one answer small on a cluster with thousands of pods
_WATCH_S = 300
_WATCH_SILENCE_S = 90.0  # bookmarks come each minute, so longer silence is a dead connection
_FOLLOW_SILENCE_S = 24 * 3600.0  # a quiet container is not a dead one


@dataclass(frozen=True)
class ListResult:
    """The items of a list, and the version to watch from."""

    items: list[Manifest]
    resource_version: str


class Kube:
    """Verbs on one API server. `namespace` is the context's, for callers that were not told one."""

    def __init__(self, access: Access) -> None:
        self.namespace = access.namespace
        self._transport = Transport(access)

    @classmethod
    def load(cls, kubeconfig: str | None = None, context: str | None = None) -> Kube:
        """Return a client of the given kubeconfig, else KUBECONFIG, ~/.kube/config, or the pod's service account."""
        return cls(kubeconfigs.load(kubeconfig, context))

    @property
    def access(self) -> Access:
        """Return where the API server is and who asks, with the newest credentials."""
        return self._transport.access

    def now(self) -> datetime:
        """Return the API server's time."""
        return self._transport.clock.now()

    def close(self) -> None:
        """Cut running watches and log streams (from any thread); later calls raise Unreachable."""
        self._transport.close()

    def get(self, r: Resource, name: str, namespace: str | None = None) -> Manifest:
        """Return an object; raise NotFound if it does not exist."""
        return self._json("GET", self._path(r, namespace, name), idempotent=True)

    def get_subresource(self, r: Resource, name: str, subresource: str, namespace: str | None = None) -> Manifest:
        """Return a subresource of an object, such as Kueue's `localqueues/…/pendingworkloads`."""
        return self._json("GET", self._path(r, namespace, name, subresource), idempotent=True)

    def list(
        self, r: Resource, namespace: str | None = None, *, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        """Every item, page by page; without a namespace those of all namespaces."""
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(_PAGE)}
        items: list[Manifest] = []
        while True:
            try:
                page = self._json("GET", r.path(namespace) + _query(query), idempotent=True)
            except Gone:  # the list changed too much between two pages: take it in one piece
                if query["limit"] is None:
                    raise
                query.update({"limit": None, "continue": None})
                items.clear()
                continue
            meta, entries = page.get("metadata"), page.get("items") or []
            if not isinstance(meta, dict) or not isinstance(entries, list):
                raise unusable(page)
            for item in entries:
                # items of a list carry no kind of their own on a real server
                items.append({"apiVersion": r.api_version, "kind": r.kind, **_object(item)})
            if not meta.get("continue"):
                return ListResult(items, str(meta.get("resourceVersion") or ""))
            query["continue"] = str(meta["continue"])

    def create(
        self,
        r: Resource,
        body: Manifest,
        *,
        dry_run: bool = False,
        strict: bool = False,
        name: str | None = None,
        subresource: str | None = None,
    ) -> Manifest:
        """Create an object; with `name` and `subresource` post to that subresource (pods/eviction).

        strict: refuse a field that the server does not know, which it would otherwise leave out.
        """
        path = r.path(self._namespace_of(r, body), name, subresource)
        sent = body if subresource else _typed(r, body)
        query = {"dryRun": "All" if dry_run else None, "fieldValidation": "Strict" if strict else None}
        return self._json("POST", path + _query(query), sent)

    def replace(self, r: Resource, body: Manifest, *, subresource: str | None = None) -> Manifest:
        """Replace an object; raise Conflict if it has changed since it was read."""
        path = self._path(r, self._namespace_of(r, body), body["metadata"]["name"], subresource)
        return self._json("PUT", path, _typed(r, body))

    def replace_status(self, r: Resource, body: Manifest) -> Manifest:
        """Replace the status of an object."""
        return self.replace(r, body, subresource="status")

    def apply(self, r: Resource, body: Manifest, *, field_manager: str) -> Manifest:
        """Server-side apply: creates, or changes only the fields this manager states, whoever owned them."""
        path = self._path(r, self._namespace_of(r, body), body["metadata"]["name"])
        query = _query({"fieldManager": field_manager, "force": "true"})
        return self._json("PATCH", path + query, _typed(r, body), _APPLY_PATCH, idempotent=True)

    def patch(
        self, r: Resource, name: str, namespace: str | None, body: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        """Apply a JSON merge patch."""
        return self._json("PATCH", self._path(r, namespace, name, subresource), body, _MERGE_PATCH, idempotent=True)

    def delete(
        self,
        r: Resource,
        name: str,
        namespace: str | None = None,
        *,
        propagation: Propagation = "Background",
        grace_s: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Ask for deletion; the object may stay while finalizers or a grace period last."""
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        self._json("DELETE", self._path(r, namespace, name), options)

    def watch(
        self,
        r: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str | None = None,
        timeout_s: int | None = None,
        bookmarks: bool = False,
    ) -> Iterator[tuple[str, Manifest]]:
        """Yield (ADDED | MODIFIED | DELETED, object) until the server ends the watch, normally after minutes.

        Raises Gone when `resource_version` is too old: list again. BOOKMARK events (an object that holds only a
        resourceVersion to resume from) come only if asked for.
        """
        query = _query(
            {
                "watch": "true",
                "labelSelector": labels,
                "fieldSelector": fields,
                "resourceVersion": resource_version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(timeout_s or _WATCH_S),
            }
        )
        chunks = self._transport.stream(r.path(namespace) + query, silence_s=_WATCH_SILENCE_S)
        for line in _lines(chunks, whole_only=True):
            event = _object(parsed(line))
            kind, item = str(event.get("type")), event.get("object")
            if kind == "ERROR" and isinstance(item, dict):
                code = item.get("code")
                raise from_response(code if isinstance(code, int) else 500, json.dumps(item).encode())
            item = _object(item)
            if kind != "BOOKMARK" or bookmarks:
                yield kind, item

    def pod_logs(
        self,
        name: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        since_s: int | None = None,
        previous: bool = False,
        timestamps: bool = False,
    ) -> Iterator[str]:
        """Lines without their newline, with their times where asked; with `follow` until the container ends."""
        query = _query(
            {
                "container": container,
                "follow": "true" if follow else None,
                "previous": "true" if previous else None,
                "timestamps": "true" if timestamps else None,
                "tailLines": None if tail is None else str(tail),
                "sinceSeconds": None if since_s is None else str(since_s),
            }
        )
        silence_s = _FOLLOW_SILENCE_S if follow else READ_TIMEOUT_S
        chunks = self._transport.stream(PODS.path(namespace, name, "log") + query, silence_s=silence_s, accept="*/*")
        for line in _lines(chunks):
            yield line.decode("utf-8", "replace")

    def pod_http(self, name: str, namespace: str, port: int, path: str) -> str:
        """Return what a pod answers to a GET, through the API server's proxy (pods/proxy)."""
        target = PODS.path(namespace, f"{quote(name)}:{port}", "proxy")
        return self._transport.request("GET", f"{target}/{path}", idempotent=True).decode("utf-8", "replace")

    def request(self, method: str, path: str, body: Manifest | None = None) -> Manifest:
        """Any path (`/version`, a subresource), JSON in and out."""
        return self._json(method, path, body, idempotent=method == "GET")

    def _path(self, r: Resource, namespace: str | None, name: str, subresource: str | None = None) -> str:
        if not name:
            raise ValueError(f"{r.kind} without a name")
        return r.path(namespace or self.namespace, quote(name), subresource)

    def _namespace_of(self, r: Resource, body: Manifest) -> str | None:
        return (body["metadata"].get("namespace") or self.namespace) if r.namespaced else None

    def _json(
        self,
        method: str,
        target: str,
        body: Any = None,
        content_type: str = "application/json",
        *,
        idempotent: bool = False,
    ) -> Manifest:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        answer = self._transport.request(method, target, data, content_type, idempotent=idempotent)
        value = parsed(answer) if answer.strip() else {}
        return value if isinstance(value, dict) else {"value": value}


def _object(value: Any) -> Manifest:
    """Return an item of a list or a watch, with the metadata that every object has."""
    if not isinstance(value, dict) or not isinstance(value.get("metadata", {}), dict):
        raise unusable(value)
    return value


def _typed(r: Resource, body: Manifest) -> Manifest:
    """Return the body with apiVersion and kind, which the server requires although the URL names them."""
    return {"apiVersion": r.api_version, "kind": r.kind, **body}


def _query(params: dict[str, str | None]) -> str:
    given = {key: value for key, value in params.items() if value}
    return f"?{urlencode(given, quote_via=quote, safe='')}" if given else ""


def _lines(chunks: Iterator[bytes], *, whole_only: bool = False) -> Iterator[bytes]:
    """Lines of a stream. `whole_only` drops a last one without newline: there, a half-sent event."""
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        yield from complete
    if rest and not whole_only:
        yield rest
