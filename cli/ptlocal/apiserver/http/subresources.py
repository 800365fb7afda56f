"""Subresources except /status: pod logs, exec, binding, eviction, namespace finalize, scale; and access reviews.

Access reviews always allow: the token allows everything here.
"""

from typing import Any

from aiohttp import web

from ptlocal.apiserver import write_options
from ptlocal.apiserver.backend import Cluster
from ptlocal.apiserver.errors import Named, StatusError, bad_request, conflict, method_not_allowed, no_such_path
from ptlocal.apiserver.http import pod_exec, pod_logs
from ptlocal.apiserver.http.encoding import bodies
from ptlocal.apiserver.http.routes import Target
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.output import jsonpath
from ptlocal.apiserver.storage.store import encode
from ptlocal.apiserver.writes import admission, object_meta

Manifest = dict[str, Any]


class Subresources:
    """The handlers of subresources."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def handle(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Handle a request for a subresource."""
        if target.subresource not in target.kind.subresources:
            raise no_such_path()
        if target.subresource == "log":
            _only(request, "GET")
            return await self._log(request, target)
        if target.subresource == "exec":
            pod = self._cluster.writer.current(target.kind, target.space, target.name)
            return await pod_exec.run(request, pod_exec.exec_request(self._cluster.layout, pod, request))
        if target.subresource == "scale":
            _only(request, "GET")
            return _json(self._scale(target))
        raw = await request.read()
        body = bodies.parse(raw, request.headers.get("Content-Type", ""))
        if not isinstance(body, dict):
            raise bad_request("the body must be an object")
        if target.subresource == "finalize":
            _only(request, "PUT")
            return _json(self._finalize(target, body))
        _only(request, "POST")
        if target.subresource == "binding":
            return _json(self._bind(target, body, write_options.is_dry_run(request.query.getall("dryRun", []))), 201)
        return _json(self._evict(target, body), 201)

    def review(self, kind: Kind, sent: Any) -> web.Response:
        """Allow any access review."""
        admission.decode(sent, kind, "Warn")
        status: Manifest = {"allowed": True}
        if kind.plural == "selfsubjectrulesreviews":
            status = {
                "incomplete": False,
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            }
        return _json({**sent, "status": status}, 201)

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        pod = self._cluster.writer.current(target.kind, target.space, target.name)
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        options = pod_logs.log_request(pod, request.query)
        reader = pod_logs.LogReader(self._cluster.layout, pod, options)
        first = reader.first()
        if not options.follow:
            return web.Response(body=first, content_type="text/plain")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        if first:
            await response.write(first)

        def ended() -> bool:
            now = self._cluster.store.get("/pods", target.space, target.name)
            if now is not None and now["metadata"]["uid"] != pod["metadata"]["uid"]:
                now = None
            return pod_logs.is_over(now, options)

        async for part in pod_logs.follow(reader, ended):
            await response.write(part)
        await response.write_eof()
        return response

    def _bind(self, target: Target, binding: Manifest, dry_run: bool) -> Manifest:
        """Set the pod's node, once, as a scheduler requests."""
        node = (binding.get("target") or {}).get("name")
        if not node or not isinstance(node, str):
            raise StatusError(422, "Invalid", f'Binding "{target.name}" is invalid: target.name: Required value')
        pod = self._cluster.writer.current(target.kind, target.space, target.name)
        what = Named("", "pods/binding", "Binding", target.name)
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict(what, f"pod {target.name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise conflict(what, f'pod {target.name} is already assigned to node "{pod["spec"]["nodeName"]}"')

        def assign(obj: Manifest) -> None:
            obj["spec"]["nodeName"] = node
            obj.setdefault("status", {}).setdefault("conditions", []).append(
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": object_meta.now(),
                }
            )

        if not dry_run:
            self._cluster.writer.change(target.kind, target.space, target.name, assign)
        return _created()

    def _evict(self, target: Target, eviction: Manifest) -> Manifest:
        sent = eviction.get("deleteOptions") or {}
        options = write_options.delete_options({}, sent if isinstance(sent, dict) else {})
        obj, _ = self._cluster.writer.delete(target.kind, target.space, target.name, options)
        self._cluster.sweep_after(obj)
        return _created()

    def _finalize(self, target: Target, namespace: Manifest) -> Manifest:
        wanted = (namespace.get("spec") or {}).get("finalizers") or []

        def set_finalizers(obj: Manifest) -> None:
            obj["spec"] = {"finalizers": wanted} if wanted else {}

        return self._cluster.writer.change(target.kind, "", target.name, set_finalizers)

    def _scale(self, target: Target) -> Manifest:
        obj = self._cluster.writer.current(target.kind, target.space, target.name)
        paths = target.kind.scale or {}
        wanted = jsonpath.find(paths["specReplicasPath"], obj) if "specReplicasPath" in paths else []
        running = jsonpath.find(paths["statusReplicasPath"], obj) if "statusReplicasPath" in paths else []
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": obj["metadata"],
            "spec": {"replicas": wanted[0] if wanted else 0},
            "status": {"replicas": running[0] if running else 0},
        }


def _only(request: web.Request, method: str) -> None:
    if request.method != method:
        raise method_not_allowed()


def _created() -> Manifest:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _json(value: Manifest, code: int = 200) -> web.Response:
    return web.Response(body=encode(value), status=code, content_type="application/json")
