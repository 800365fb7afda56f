"""The hub's protocol for writing: repositories, Git LFS uploads and commits, in memory, with faults on demand.

Left out: datasets, branches, Xet (its client is told so by HF_HUB_DISABLE_XET).
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

TOKEN = "hf_planted"
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(preupload|commit)/main|/revision/main)?")
_BATCH = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/\w+/(.+)")


@dataclass
class Repositories:
    """`files` by repository; `blobs` by SHA-256. `faults`: the first request whose line matches gets that status."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    blobs: dict[str, bytes] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[str, int]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def head(self, repository: str) -> str:
        """The newest commit's name."""
        return hashlib.sha1(f"{repository}{self.commits.get(repository, 0)}".encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Repositories

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_GET

    def _handle(self) -> None:
        path, hub = self.path.split("?")[0], self.hub
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self.command != "HEAD" else b""
        line = f"{self.command} {path}"
        hub.requests.append(line)
        for fault in hub.faults:
            if re.search(fault[0], line):
                hub.faults.remove(fault)
                if fault[1] == 0:  # the server dies
                    self.close_connection = True
                    return None
                return self._send(fault[1], {"error": "planted"})
        if not path.startswith("/blobs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, {"error": "Invalid username or password."})
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            hub.files.setdefault(name, {".gitattributes": b""})
            if wanted.get("private") or wanted.get("visibility") == "private":
                hub.private.add(name)
            return self._send(200, {"url": f"{hub.url}/{name}"})
        if path.startswith("/blobs/"):
            if hashlib.sha256(body).hexdigest() != path.removeprefix("/blobs/"):
                return self._send(400, {"error": "bad digest"})
            hub.blobs[path.removeprefix("/blobs/")] = body
            return self._send(200, {})
        matched = _API.fullmatch(path) or _BATCH.fullmatch(path) or _FILE.fullmatch(path)
        if matched is None or matched[1] not in hub.files:
            return self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        return self._of_repository(matched, body)

    def _of_repository(self, matched: re.Match[str], body: bytes) -> None:
        hub, name = self.hub, matched[1]
        if matched.re is _FILE:
            return self._file(hub.files[name], matched[2])
        if matched.re is _BATCH:
            objects = [self._action(each) for each in json.loads(body)["objects"]]
            return self._send(200, {"transfer": "basic", "objects": objects}, {}, "application/vnd.git-lfs+json")
        if matched[2] == "preupload":
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            return self._send(200, {"files": files})
        if matched[2] == "commit":
            return self._commit(name, [json.loads(line) for line in body.splitlines()])
        siblings = [{"rfilename": file} for file in hub.files[name]]
        return self._send(200, {"id": name, "sha": hub.head(name), "siblings": siblings, "private": True})

    def _action(self, each: dict[str, Any]) -> dict[str, Any]:
        if each["oid"] in self.hub.blobs:
            return each
        return {**each, "actions": {"upload": {"href": f"{self.hub.url}/blobs/{each['oid']}"}}}

    def _commit(self, name: str, operations: list[dict[str, Any]]) -> None:
        hub = self.hub
        files = dict(hub.files[name])
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "header" and value.get("parentCommit", hub.head(name)) != hub.head(name):
                return self._send(412, {"error": "The branch has moved on"})
            if operation["key"] == "deletedFile":
                del files[value["path"]]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            if operation["key"] == "lfsFile":
                files[value["path"]] = hub.blobs[value["oid"]]
        hub.files[name] = files
        hub.commits[name] = hub.commits.get(name, 0) + 1
        return self._send(200, {"commitUrl": f"{hub.url}/{name}/commit/{hub.head(name)}", "commitOid": hub.head(name)})

    def _file(self, files: dict[str, bytes], name: str) -> None:
        if name not in files:
            return self._send(404, {}, {"X-Error-Code": "EntryNotFound"})
        content = files[name]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": "0" * 40}
        return self._send(200, content, headers)

    def _send(
        self, status: int, body: Any, headers: dict[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serve_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repositories]:
    """A running hub that this process's client uses, with a token that may write."""
    from huggingface_hub import constants

    hub = Repositories()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for module, name, value in (
        (constants, "ENDPOINT", hub.url),
        (constants, "HF_HUB_DISABLE_XET", True),
        (constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
