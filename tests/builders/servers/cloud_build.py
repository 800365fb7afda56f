"""A stand-in for Cloud Build's REST API: a build works for two polls and ends as `status` says."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class CloudBuild:
    """The bodies of the builds, how the next ones end, and what each pushes."""

    url: str = ""
    status: str = "SUCCESS"
    digest: str = f"sha256:{'ab' * 32}"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    polls: int = 0


@contextmanager
def cloud_build() -> Iterator[CloudBuild]:
    """Serve until the block ends."""
    service = CloudBuild()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            service.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            service.polls = 0
            self._answer({"metadata": {"build": {"id": "b1", "status": "QUEUED", "logUrl": "https://logs"}}})

        def do_GET(self) -> None:
            service.polls += 1
            if service.polls < 3:
                return self._answer({"id": "b1", "status": "WORKING"})
            results = {"images": [{"name": service.bodies[-1]["images"][0], "digest": service.digest}]}
            failure = {"failureInfo": {"detail": "step 0 failed"}}
            ended = {"results": results} if service.status == "SUCCESS" else failure
            return self._answer({"id": "b1", "status": service.status, **ended})

        def _answer(self, body: dict[str, Any]) -> None:
            is_known = self.headers.get("Authorization") == "Bearer planted" and self.path.startswith(
                "/v1/projects/p/builds"
            )
            content = json.dumps(body if is_known else {"error": {"message": "denied"}}).encode()
            self.send_response(200 if is_known else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
