"""A small server that speaks the Hugging Face hub's protocol for models and data sets: enough for its client."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_planted"
REPOSITORY, GATED, DATASET = "org/model", "org/gated", "org/data"
REVISIONS = ("main", "v1", COMMIT)


@contextmanager
def hub(model: Path, dataset: Path | None = None) -> Iterator[str]:
    """Serves the files of `model` as org/model, and as org/gated to those who bring TOKEN; yields the endpoint.

    Those of `dataset` are the data set org/data.
    """
    models, data = _files(model), _files(dataset)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            path = unquote(self.path.split("?")[0]).removeprefix("/")
            asks_api, path = path.startswith("api/"), path.removeprefix("api/")
            is_data, path = path.startswith("datasets/"), path.removeprefix("datasets/").removeprefix("models/")
            organisation, name, *rest = path.split("/", 4)
            repository = f"{organisation}/{name}"
            if repository not in ((DATASET,) if is_data else (REPOSITORY, GATED)):
                return self._refuse(404, "RepoNotFound")
            if repository == GATED and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._refuse(403, "GatedRepo")
            if len(rest) > 1 and rest[1] not in REVISIONS:
                return self._refuse(404, "RevisionNotFound")
            files = data if is_data else models
            if "tree" in rest:
                return self._send(json.dumps(_listing(files)).encode(), "application/json", body)
            if asks_api:
                about = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in sorted(files)]}
                return self._send(json.dumps(about).encode(), "application/json", body)
            name = rest[2]
            if name not in files:
                return self._refuse(404, "EntryNotFound")
            return self._send(files[name], "application/octet-stream", body)

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


def _files(directory: Path | None) -> dict[str, bytes]:
    if directory is None:
        return {}
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _listing(files: dict[str, bytes]) -> list[dict[str, object]]:
    """The tree; weights are large files, which have a digest of their own."""
    return [
        {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest(),
            **({"lfs": _large(content)} if name.endswith(".safetensors") else {}),
        }
        for name, content in sorted(files.items())
    ]


def _large(content: bytes) -> dict[str, object]:
    return {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
