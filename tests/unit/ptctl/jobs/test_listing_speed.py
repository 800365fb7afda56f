"""`workload list` of a thousand jobs, as a process of its own against a server of a few lines."""

import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

JOBS = 1000


@pytest.fixture
def server(make_job: Callable[..., Any]) -> Iterator[str]:
    jobs = [_full(make_job(f"job-{i:04d}"), i) for i in range(JOBS)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            start, size = int(query.get("continue", ["0"])[0]), int(query.get("limit", [str(JOBS)])[0])
            end = start + size
            meta = {"resourceVersion": "1", **({"continue": str(end)} if end < JOBS else {})}
            body = json.dumps({"metadata": meta, "items": jobs[start:end]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def _full(job: dict[str, Any], index: int) -> dict[str, Any]:
    """As big as real ones: every condition, managed fields, a last-applied annotation."""
    condition = {
        "status": "True",
        "reason": "Training",
        "message": "x" * 80,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    job["metadata"].update(
        uid=f"uid-{index}",
        resourceVersion=str(index),
        creationTimestamp="2026-01-01T00:00:00Z",
        annotations={"kubectl.kubernetes.io/last-applied-configuration": json.dumps(job["spec"])},
        managedFields=[
            {"manager": m, "operation": "Apply", "fieldsV1": {f"f:{i}": {} for i in range(40)}} for m in "ab"
        ],
    )
    job["status"].update(
        conditions=[{"type": kind, **condition} for kind in ("Validated", "Running", "CapacityReady", "QuotaReserved")],
        progress={"step": index, "total": JOBS, "eta": "1h12m"},
        metrics={"loss": "0.8123", "reward": "0.61"},
    )
    return job


def test_listing_1000_jobs_costs_less_than_700_ms_of_cpu(server: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
            }
        )
    )
    spent: list[float] = []
    while len(spent) < 10 and min(spent, default=1.0) >= 0.7:  # again: a busy machine has cold caches
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "ptctl", "workload", "list", "--kubeconfig", str(config)],
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert len(done.stdout.splitlines()) == JOBS + 1
    assert min(spent) < 0.7
