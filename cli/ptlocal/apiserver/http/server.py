"""The HTTP server: authentication, the paths that are not resources, and errors as metav1.Status.

One catch-all route; the meaning of a path depends on the definitions that exist at that moment.
"""

import hmac
import logging
import sqlite3
import time
from typing import Any

from aiohttp import web

from ptlocal.apiserver.backend import Cluster
from ptlocal.apiserver.errors import StatusError, bad_request, no_such_path, too_large, unauthorized
from ptlocal.apiserver.http import discovery, routes
from ptlocal.apiserver.http.encoding import bodies
from ptlocal.apiserver.http.handlers import Handlers, json_answer, raw_answer
from ptlocal.apiserver.http.openapi import Documents

Manifest = dict[str, Any]
VERSION = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.0-posttrain.local",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "python",
}
_HEALTH = ("/healthz", "/readyz", "/livez")
_AGGREGATED = "as=APIGroupDiscoveryList"
_log = logging.getLogger(__name__)


class Server:
    """The HTTP application."""

    def __init__(self, cluster: Cluster, token: str) -> None:
        self._cluster = cluster
        self._token = token
        self._handlers = Handlers(cluster)
        self._documents = Documents(cluster.registry)
        self._started = time.time()
        self._requests: dict[tuple[str, int], int] = {}
        self.address = ""

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=bodies.MAX_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_shutdown.append(self._end_watches)
        return app

    async def _end_watches(self, app: web.Application) -> None:
        self._cluster.hub.end_all()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            response = await self._answer(request)
        except StatusError as error:
            response = _failure(error)
        except web.HTTPRequestEntityTooLarge:
            response = _failure(too_large(bodies.MAX_BYTES))
        except UnicodeEncodeError:
            response = _failure(bad_request("the object holds text that is not valid Unicode"))
        except RecursionError:
            response = _failure(bad_request("the object is nested too deeply"))
        except sqlite3.OperationalError as error:
            _log.error("%s %s: %s", request.method, request.path, error)
            response = _failure(StatusError(500, "InternalError", f"the server cannot store or read objects: {error}"))
        except (ConnectionResetError, web.HTTPException):
            raise
        except Exception:
            _log.exception("%s %s", request.method, request.path)
            response = _failure(StatusError(500, "InternalError", "Internal error occurred: see the server's log"))
        key = (request.method, response.status)
        self._requests[key] = self._requests.get(key, 0) + 1
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in _HEALTH or path.startswith(tuple(f"{p}/" for p in _HEALTH)):
            return web.Response(text="ok")
        self._authenticate(request)
        target = routes.resolve(self._cluster.registry, path)
        if target is not None:
            return await self._handlers.handle(request, target)
        if request.method not in ("GET", "HEAD"):
            raise no_such_path()
        return self._document(request, path.rstrip("/") or "/")

    def _authenticate(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            raise unauthorized()

    def _document(self, request: web.Request, path: str) -> web.Response:
        registry = self._cluster.registry
        if path in ("/api", "/apis") and _AGGREGATED in request.headers.get("Accept", ""):
            response = json_answer(discovery.aggregated(registry, core=path == "/api"))
            response.headers["Content-Type"] = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            return response
        if path == "/version":
            return json_answer(VERSION)
        if path == "/metrics":
            return web.Response(text=self._metrics())
        if path == "/openapi/v2":
            if "protobuf" in request.headers.get("Accept", ""):
                # kubectl reads nothing else, and only for unknown kinds: an empty document tells it so
                return web.Response(body=b"", content_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
            return raw_answer(self._documents.v2())
        if path == "/openapi/v3":
            return raw_answer(self._documents.index())
        listing: Any = None
        if path.startswith("/openapi/v3/"):
            document = self._documents.v3(path.removeprefix("/openapi/v3/"))
            return _existing(None if document is None else raw_answer(document))
        if path == "/":
            listing = {"paths": ["/api", "/apis", *_HEALTH, "/metrics", "/openapi/v2", "/openapi/v3", "/version"]}
        elif path == "/api":
            listing = discovery.api_versions(self.address)
        elif path == "/apis":
            listing = discovery.group_list(registry)
        elif path.startswith(("/api/", "/apis/")):
            listing = self._discovered(path.strip("/").split("/"))
        return _existing(None if listing is None else json_answer(listing))

    def _discovered(self, parts: list[str]) -> Manifest | None:
        registry = self._cluster.registry
        if parts[0] == "api" and len(parts) == 2:
            return discovery.resource_list(registry, "", parts[1])
        if parts[0] == "apis" and len(parts) == 2:
            return discovery.group(registry, parts[1])
        if parts[0] == "apis" and len(parts) == 3:
            return discovery.resource_list(registry, parts[1], parts[2])
        return None

    def _metrics(self) -> str:
        lines = ["# TYPE apiserver_request_total counter"]
        lines += [
            f'apiserver_request_total{{verb="{verb}",code="{code}"}} {count}'
            for (verb, code), count in sorted(self._requests.items())
        ]
        lines += [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started:.3f}",
            "# TYPE posttrain_local_resource_version counter",
            f"posttrain_local_resource_version {self._cluster.store.revision}",
        ]
        return "\n".join(lines) + "\n"


def _existing(response: web.Response | None) -> web.Response:
    if response is None:
        raise no_such_path()
    return response


def _failure(error: StatusError) -> web.Response:
    response = json_answer(error.body(), error.code)
    response.headers.update(error.headers)
    return response
