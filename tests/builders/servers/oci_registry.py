"""A registry that speaks OCI's distribution protocol, in memory: what is pushed can be pulled again, by tag or digest.

Contents are checked against their digests. `login` (user and password) makes it ask for tokens, as Docker's hub does;
of `faults` the first whose pattern matches a request's line is answered with its status (0: the server hangs up). Left
out: deletion.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.builders.servers import request_body

_TOKEN = "planted"
_UPLOAD = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/(?P<session>\d*)(?:\?digest=(?P<digest>\S+))?")
_MOUNT = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/\?mount=(?P<digest>[^&]+)&from=(?P<source>\S+)")
_CONTENT = re.compile(r"/v2/(?P<name>.+)/(?P<kind>blobs|manifests)/(?P<reference>[^/]+)")


class OciRegistry(ThreadingHTTPServer):
    """contents: (repository, `blobs` or `manifests`, digest or tag) to media type and bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents: dict[tuple[str, str, str], tuple[str, bytes]] = {}
        self.login: tuple[str, str] | None = None
        self.faults: list[tuple[str, int]] = []
        self.requests: list[str] = []
        self.sessions: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: OciRegistry
    protocol_version = "HTTP/1.1"

    def _is_refused(self) -> bool:
        """Answer for a fault, or for a token that lacks."""
        line = f"{self.command} {self.path}"
        self.server.requests.append(line)
        fault = next((each for each in self.server.faults if re.search(each[0], line)), None)
        if fault is not None:
            self.server.faults.remove(fault)
            self.close_connection = True  # what was sent is not read
            if fault[1]:
                errors = json.dumps({"errors": [{"code": "PLANTED", "message": "planted"}]}).encode()
                self._answer(fault[1], errors, {"Connection": "close", "Retry-After": "0"})
            return True
        if self.server.login is None or self.headers.get("Authorization") == f"Bearer {_TOKEN}":
            return False
        if self.command in ("POST", "PUT"):
            request_body.read(self)
        challenge = f'Bearer realm="http://{self.server.address}/token",service="tests"'
        errors = json.dumps({"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}).encode()
        self._answer(401, errors, {"WWW-Authenticate": challenge})
        return True

    def _token(self) -> None:
        user = ":".join(self.server.login or ()).encode()
        if self.headers.get("Authorization") != f"Basic {base64.b64encode(user).decode()}":
            return self._answer(401, b'{"errors": [{"message": "incorrect username or password"}]}')
        return self._answer(200, json.dumps({"token": _TOKEN}).encode())

    def do_GET(self) -> None:
        if self.path.startswith("/token?"):
            return self._token()
        if self._is_refused():
            return None
        if self.path == "/v2/":
            return self._answer(200)
        match = _CONTENT.fullmatch(self.path)
        content = self.server.contents.get((match["name"], match["kind"], match["reference"])) if match else None
        if content is None:
            return self._answer(404)
        self._answer(200, content[1], {"Content-Type": content[0], "Docker-Content-Digest": _digest(content[1])})
        return None

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if self._is_refused():
            return
        request_body.read(self)
        if mount := _MOUNT.fullmatch(self.path):
            there = self.server.contents.get((mount["source"], "blobs", mount["digest"]))
            if there is not None:
                self.server.contents[mount["name"], "blobs", mount["digest"]] = there
                self._answer(201, headers={"Location": f"/v2/{mount['name']}/blobs/{mount['digest']}"})
                return
            self._answer(202, headers={"Location": f"/v2/{mount['name']}/blobs/uploads/"})
            return
        if (upload := _UPLOAD.fullmatch(self.path)) is None:
            self._answer(404)
            return
        session = str(len(self.server.requests))
        self.server.sessions[session] = b""
        self._answer(202, headers={"Location": f"/v2/{upload['name']}/blobs/uploads/{session}"})

    def do_PATCH(self) -> None:
        if self._is_refused():
            return
        body, upload = request_body.read(self), _UPLOAD.fullmatch(self.path)
        if upload is None:
            self._answer(404)
            return
        self.server.sessions[upload["session"]] += body
        last = len(self.server.sessions[upload["session"]]) - 1
        self._answer(202, headers={"Location": self.path, "Range": f"0-{last}"})

    def do_PUT(self) -> None:
        if self._is_refused():
            return None
        body, media_type = request_body.read(self), self.headers.get("Content-Type", "application/octet-stream")
        upload, content = _UPLOAD.fullmatch(self.path.replace("%3A", ":")), _CONTENT.fullmatch(self.path)
        if upload is not None:
            body = self.server.sessions.pop(upload["session"], b"") + body
        digest = _digest(body)
        if upload is not None:
            if upload["digest"] != digest:
                return self._answer(400)
            self.server.contents[upload["name"], "blobs", digest] = (media_type, body)
        elif content is not None:
            for reference in (content["reference"], digest):
                self.server.contents[content["name"], "manifests", reference] = (media_type, body)
        self._answer(201, headers={"Location": self.path, "Docker-Content-Digest": digest})
        return None

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@contextmanager
def oci_registry() -> Iterator[OciRegistry]:
    """Serve until the block ends."""
    server = OciRegistry()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
