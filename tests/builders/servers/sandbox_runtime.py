"""The HTTP runtime of a sandbox, as Agent Sandbox's python-runtime-sandbox serves it: `/upload`, `/execute`, `/`.

    python tests/builders/servers/sandbox_runtime.py --port 8888 [--directory DIR] [--announce FILE]

Its commands run on this machine. `python3` is this interpreter.
"""

import argparse
import email.parser
import email.policy
import json
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class SandboxRuntime(ThreadingHTTPServer):
    """A runtime on this machine. commands: what it was to execute; broken: answers /execute with this instead."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, directory: Path, port: int = 0, broken: bytes | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.directory, self.broken = directory, broken
        self.commands: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: SandboxRuntime

    def do_GET(self) -> None:
        self._answer({"status": "ok", "message": "Sandbox Runtime is active."})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/upload":
            self._upload(body)
        elif self.path == "/execute":
            self._execute(json.loads(body)["command"])
        else:
            self.send_error(404)

    def _upload(self, body: bytes) -> None:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
        (part,) = form.iter_parts()
        assert part.get_param("name", header="content-disposition") == "file"
        name, content = part.get_filename(), part.get_payload(decode=True)
        assert name
        assert isinstance(content, bytes)
        (self.server.directory / name).write_bytes(content)
        self._answer({"message": f"File '{name}' uploaded successfully."})

    def _execute(self, command: str) -> None:
        self.server.commands.append(command)
        if self.server.broken is not None:
            self._send(200, self.server.broken)
            return
        arguments = shlex.split(command)
        if arguments[0] == "python3":
            arguments[0] = sys.executable
        ended = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            cwd=self.server.directory,
            env={"PATH": "/usr/bin:/bin"},
            check=False,
        )
        self._answer({"stdout": ended.stdout, "stderr": ended.stderr, "exit_code": ended.returncode})

    def _answer(self, document: dict[str, object]) -> None:
        self._send(200, json.dumps(document).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def sandbox(directory: Path, broken: bytes | None = None) -> Iterator[SandboxRuntime]:
    """Serve a runtime from a thread of this process."""
    server = SandboxRuntime(directory, broken=broken)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8888)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--announce", type=Path, help="write the address to this file")
    args = parser.parse_args()
    directory = args.directory or Path(tempfile.mkdtemp(prefix="sandbox-runtime-"))
    server = SandboxRuntime(directory, args.port)
    if args.announce is not None:
        written = args.announce.with_suffix(".new")
        written.write_text(server.address)
        written.replace(args.announce)
    server.serve_forever()


if __name__ == "__main__":
    main()
