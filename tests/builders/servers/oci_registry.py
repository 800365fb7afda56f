"""A registry that speaks OCI's distribution protocol, in memory: what is pushed can be pulled again, by tag or digest.

Contents are checked against their digests. Left out: uploads in pieces, deletion, authentication.
"""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_UPLOAD = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/(?:\?digest=(?P<digest>\S+))?")
_CONTENT = re.compile(r"/v2/(?P<name>.+)/(?P<kind>blobs|manifests)/(?P<reference>[^/]+)")


class OciRegistry(ThreadingHTTPServer):
    """contents: (repository, `blobs` or `manifests`, digest or tag) to media type and bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents: dict[tuple[str, str, str], tuple[str, bytes]] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: OciRegistry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
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
        self._body()
        self._answer(202, headers={"Location": self.path} if _UPLOAD.fullmatch(self.path) else {})

    def do_PUT(self) -> None:
        body, media_type = self._body(), self.headers.get("Content-Type", "application/octet-stream")
        digest = _digest(body)
        upload, content = _UPLOAD.fullmatch(self.path.replace("%3A", ":")), _CONTENT.fullmatch(self.path)
        if upload is not None:
            if upload["digest"] != digest:
                return self._answer(400)
            self.server.contents[upload["name"], "blobs", digest] = (media_type, body)
        elif content is not None:
            for reference in (content["reference"], digest):
                self.server.contents[content["name"], "manifests", reference] = (media_type, body)
        self._answer(201, headers={"Location": self.path, "Docker-Content-Digest": digest})
        return None

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

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
