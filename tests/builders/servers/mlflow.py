"""A tracking server as MLflow's client talks to it: experiments, runs, parameters, metrics; kept in memory."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class MlflowServer:
    """What clients have sent. fails: answer everything with an error."""

    uri: str = ""
    fails: bool = False
    tokens: set[str] = field(default_factory=set)
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.fails:
            return 400, {"error_code": "BAD_REQUEST", "message": "out of service"}
        if path == "experiments/get-by-name":
            experiment_id = self.experiments.get(body["experiment_name"])
            if experiment_id is None:
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"}
            return 200, {"experiment": {"experiment_id": experiment_id, "name": body["experiment_name"]}}
        if path == "experiments/create":
            self.experiments[body["name"]] = str(len(self.experiments) + 1)
            return 200, {"experiment_id": self.experiments[body["name"]]}
        if path == "runs/create":
            run_id = f"run{len(self.runs)}"
            self.runs[run_id] = {"name": body["run_name"], "status": "RUNNING", "metrics": [], "params": {}}
        else:
            run_id = body["run_id"]
        run = self.runs[run_id]
        if path == "runs/log-batch":
            run["metrics"] += [(one["key"], int(one.get("step", 0)), one["value"]) for one in body.get("metrics", [])]
            run["params"] |= {one["key"]: one["value"] for one in body.get("params", [])}
        if path == "runs/update":
            run["status"] = body.get("status", run["status"])
        info = {"run_id": run_id, "run_uuid": run_id, "status": run["status"], "artifact_uri": "", "start_time": 0}
        return 200, {"run_info": info, "run": {"info": info, "data": {}}}


@contextmanager
def mlflow_server() -> Iterator[MlflowServer]:
    state = MlflowServer()

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            body |= {name: values[0] for name, values in parse_qs(url.query).items()}
            state.tokens.add(self.headers.get("Authorization", ""))
            status, answer = state.answer(url.path.partition("/mlflow/")[2], body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _reply

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.uri = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
