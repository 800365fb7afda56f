"""A small server that speaks the Hugging Face hub's protocol for models: enough for `snapshot_download`."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_planted"
REPOSITORY, GATED = "org/model", "org/gated"


@contextmanager
def hub(model: Path) -> Iterator[str]:
    """Serves the files of `model` as org/model, and as org/gated to those who bring TOKEN; yields the endpoint."""
    files = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            path = self.path.split("?")[0].removeprefix("/")
            repository = "/".join(path.removeprefix("api/models/").split("/")[:2])
            if repository not in (REPOSITORY, GATED):
                return self._refuse(404, "RepoNotFound")
            if repository == GATED and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._refuse(403, "GatedRepo")
            if "/tree/" in path:
                return self._send(json.dumps(self._listing()).encode(), "application/json", body)
            if path.startswith("api/models/"):
                return self._send(json.dumps(self._about(repository)).encode(), "application/json", body)
            name = path.rpartition("/")[2]
            if name not in files:
                return self._refuse(404, "EntryNotFound")
            return self._send(files[name], "application/octet-stream", body)

        def _about(self, repository: str) -> dict[str, object]:
            return {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in sorted(files)]}

        def _listing(self) -> list[dict[str, object]]:
            return [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in sorted(files.items())
            ]

        def _send(self, content: bytes, kind: str, body: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Tests say enough."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
