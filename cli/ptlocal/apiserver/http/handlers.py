"""One function per HTTP verb on a resource: decode, call the writer or the reader, format.

Everything runs in the event loop's thread, so a handler's read and write are one atomic step; it awaits only the
request's body and streams.
"""

import json
from typing import Any

from aiohttp import web

from ptlocal.apiserver import write_options
from ptlocal.apiserver.backend import Cluster
from ptlocal.apiserver.errors import method_not_allowed, no_such_path, success
from ptlocal.apiserver.http import patch_requests, watch_stream
from ptlocal.apiserver.http.encoding import bodies
from ptlocal.apiserver.http.routes import Target
from ptlocal.apiserver.http.subresources import Subresources
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.output import events_v1, representations
from ptlocal.apiserver.storage import read
from ptlocal.apiserver.storage.store import encode
from ptlocal.apiserver.write_options import WriteOptions
from ptlocal.apiserver.writes import admission

Manifest = dict[str, Any]


class Handlers:
    """The verbs on resources."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._subresources = Subresources(cluster)

    async def handle(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Handle a request for a resource."""
        if target.subresource and not (target.subresource == "status" and target.kind.has_status):
            return await self._subresources.handle(request, target)
        if request.method in ("GET", "HEAD"):
            return await self._read(request, target)
        raw = await request.read()
        if request.method == "POST":
            return self._create(request, target, raw)
        if request.method == "PUT":
            return self._replace(request, target, raw)
        if request.method == "PATCH":
            return self._patch(request, target, raw)
        if request.method == "DELETE":
            return self._delete(request, target, raw)
        raise method_not_allowed()

    async def _read(self, request: web.Request, target: Target) -> web.StreamResponse:
        kind = _allow(target, "get" if target.name else "list")
        form = representations.choose(
            request.headers.get("Accept", ""), kind, request.query.get("includeObject", "Metadata")
        )
        if target.name:
            return raw_answer(form.one(_body(self._cluster.writer.current(kind, target.space, target.name))))
        if write_options.flag(request.query, "watch"):
            return await watch_stream.watch(self._cluster, request, target, form)
        page = read.read_page(self._cluster.store, kind, target.namespace, request.query)
        return raw_answer(form.many(page.bodies, page.meta))

    def _create(self, request: web.Request, target: Target, raw: bytes) -> web.Response:
        kind = _allow(target, "create")
        if target.name or (kind.namespaced and target.namespace is None):
            raise method_not_allowed()
        options = _write_options(request, target)
        obj = bodies.parse(raw, request.headers.get("Content-Type", ""))
        if kind.verbs == ("create",):
            return self._subresources.review(kind, obj)
        warnings = admission.decode(obj, kind, options.field_validation)
        created = self._cluster.writer.create(self._stored(kind), target.space, _to_stored(kind, obj), options)
        return _answer(request, kind, created, 201, warnings)

    def _replace(self, request: web.Request, target: Target, raw: bytes) -> web.Response:
        kind = _allow(target, "update")
        if not target.name:
            raise method_not_allowed()
        options = _write_options(request, target)
        obj = bodies.parse(raw, request.headers.get("Content-Type", ""))
        warnings = admission.decode(obj, kind, options.field_validation)
        updated = self._cluster.writer.update(
            self._stored(kind), target.space, target.name, _to_stored(kind, obj), options, requires_version=True
        )
        self._cluster.sweep_after(updated)
        return _answer(request, kind, updated, 200, warnings)

    def _patch(self, request: web.Request, target: Target, raw: bytes) -> web.Response:
        kind = _allow(target, "patch")
        if not target.name:
            raise method_not_allowed()
        options = _write_options(request, target)
        patch = patch_requests.Patch(
            bodies.media_type(request.headers.get("Content-Type", "")), raw, has_manager="fieldManager" in request.query
        )
        result = patch_requests.apply(self._cluster.writer, target, self._stored(kind), patch, options)
        self._cluster.sweep_after(result.obj)
        return _answer(request, kind, result.obj, 201 if result.is_new else 200, result.warnings)

    def _delete(self, request: web.Request, target: Target, raw: bytes) -> web.Response:
        sent = bodies.parse(raw, request.headers.get("Content-Type", "")) if raw.strip() else {}
        options = write_options.delete_options(request.query, sent if isinstance(sent, dict) else {})
        if not target.name:
            return self._delete_collection(request, target, options)
        kind = self._stored(_allow(target, "delete"))
        obj, is_gone = self._cluster.writer.delete(kind, target.space, target.name, options)
        self._cluster.sweep_after(obj)
        if is_gone and not kind.returns_deleted:
            return json_answer(success(target.kind.named(target.name), obj["metadata"]["uid"]))
        return _answer(request, target.kind, obj, 200)

    def _delete_collection(
        self, request: web.Request, target: Target, options: write_options.DeleteOptions
    ) -> web.Response:
        kind = _allow(target, "deletecollection")
        if kind.namespaced and target.namespace is None:
            raise method_not_allowed()
        page = read.read_page(self._cluster.store, kind, target.namespace, request.query)
        for body in page.bodies:
            name = json.loads(body)["metadata"]["name"]
            obj, _ = self._cluster.writer.delete(self._stored(kind), target.space, name, options)
            self._cluster.sweep_after(obj)
        return raw_answer(representations.JsonFormat(kind).many(page.bodies, page.meta))

    def _stored(self, kind: Kind) -> Kind:
        """Return the kind under which objects are stored: events.k8s.io shows core events."""
        return self._cluster.registry.stored_kind(kind)


def _allow(target: Target, verb: str) -> Kind:
    if verb not in target.kind.verbs:
        raise method_not_allowed()
    if target.name and target.kind.namespaced and target.namespace is None:
        raise no_such_path()
    return target.kind


def _write_options(request: web.Request, target: Target) -> WriteOptions:
    return write_options.write_options(request.query, request.headers.get("User-Agent", ""), target.subresource)


def _to_stored(kind: Kind, obj: Manifest) -> Manifest:
    if kind.group != "events.k8s.io":
        return obj
    return {**events_v1.to_core(obj), "apiVersion": "v1"}


def _body(obj: Manifest) -> bytes:
    return encode({key: value for key, value in obj.items() if key not in ("apiVersion", "kind")})


def _answer(
    request: web.Request, kind: Kind, obj: Manifest, code: int, warnings: list[str] | None = None
) -> web.Response:
    form = representations.choose(
        request.headers.get("Accept", ""), kind, request.query.get("includeObject", "Metadata")
    )
    response = raw_answer(form.one(_body(obj)), code)
    for warning in warnings or []:
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response


def raw_answer(data: bytes, code: int = 200) -> web.Response:
    """Return a JSON response from bytes."""
    return web.Response(body=data, status=code, content_type="application/json")


def json_answer(value: Any, code: int = 200) -> web.Response:
    """Return a JSON response from a value."""
    return raw_answer(encode(value), code)
