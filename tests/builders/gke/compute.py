"""A server that answers as the Compute and Resource Manager APIs do, from a table of paths.

`there` maps a path to its JSON; a POST to a collection makes an entry of the body's name, once. `script` may refuse a
request with (HTTP status, words).
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Refusal = tuple[int, str]


class ComputeServer:
    """`with ComputeServer() as compute:` listens on `compute.endpoint`."""

    def __init__(self, script: Callable[[str, str], Refusal | None] = lambda method, path: None) -> None:
        self.there: dict[str, Any] = {}
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.script = script
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """(HTTP status, JSON)."""
        self.calls.append((method, path))
        if refusal := self.script(method, path):
            return refusal[0], {"error": {"code": refusal[0], "message": refusal[1]}}
        if method == "POST" and path in self.answers:
            return 200, self.answers[path](body)
        if method == "GET":
            missing = {"error": {"code": 404, "message": f"The resource '{path}' was not found"}}
            return (200, self.there[path]) if path in self.there else (404, missing)
        name = f"{path}/{body['name']}"
        if name in self.there:
            return 409, {"error": {"code": 409, "message": f"The resource '{name}' already exists"}}
        self.there[name] = body
        return 200, {"kind": "compute#operation"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                status, answer = server.answer(self.command, self.path.partition("?")[0], body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
