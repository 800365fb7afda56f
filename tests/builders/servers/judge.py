"""A stand-in for `vllm serve` that judges: it gives a completion a point for each `a`, and waits when it is told to.

`python judge.py FOLDER serve MODEL --served-model-name NAME --port PORT …`: it writes its host's name and process into
FOLDER/judges, and answers once FOLDER/open is there.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER, WORDS = Path(sys.argv[1]), sys.argv[2:]
NAME, PORT = (WORDS[WORDS.index(flag) + 1] for flag in ("--served-model-name", "--port"))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or request["model"] != NAME:
            self._send(404, {"error": {"message": f"{self.path}: {request['model']}"}})
            return
        _note("asked")
        while not (FOLDER / "open").exists():
            time.sleep(0.05)
        score = request["messages"][-1]["content"].count("a") % 11
        message = {"role": "assistant", "content": f"Score: {score}"}
        self._send(200, {"choices": [{"message": message}], "usage": {"total_tokens": 3}})

    def _send(self, code: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _note(file: str) -> None:
    with (FOLDER / file).open("a") as lines:
        lines.write(f"{os.environ['HOSTNAME']} {os.getpid()}\n")


if __name__ == "__main__":
    _note("judges")
    ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler).serve_forever()
