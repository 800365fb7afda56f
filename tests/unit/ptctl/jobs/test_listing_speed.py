"""`workload list` of a thousand jobs and completion of their names: processes against a server of a few lines."""

import json
import os
import resource
import subprocess
import sys
import threading
import time
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


@pytest.fixture
def kubeconfig(server: str, tmp_path: Path) -> Path:
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
    return config


def least_cpu_seconds(words: list[str], lines: int, limit: float, **env: str) -> float:
    """Run ptctl until it stays below the limit, at most ten times: a busy machine has cold caches."""
    spent: list[float] = []
    while len(spent) < 10 and min(spent, default=limit) >= limit:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "ptctl", *words],
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
            env={**os.environ, **env},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert len(done.stdout.splitlines()) == lines
    return min(spent)


def test_listing_1000_jobs_costs_less_than_700_ms_of_cpu(kubeconfig: Path) -> None:
    words = ["workload", "list", "--kubeconfig", str(kubeconfig)]
    assert least_cpu_seconds(words, JOBS + 1, 0.7) < 0.7


def complete(kubeconfig: Path, home: Path) -> float:
    """Press the key after `job-000`, and return the CPU-seconds of it."""
    env = {"_PTCTL_COMPLETE": "bash_complete", "COMP_WORDS": "ptctl workload logs job-000", "COMP_CWORD": "3"}
    return least_cpu_seconds([], 10, 0.2, KUBECONFIG=str(kubeconfig), PTCTL_HOME=str(home), **env)


def test_completion_of_names_costs_less_than_200_ms_of_cpu(kubeconfig: Path, tmp_path: Path) -> None:
    """Once ptctl has listed them; the first key asks the cluster itself."""
    assert complete(kubeconfig, tmp_path / "home") < 0.2


def test_an_old_list_of_names_is_offered_at_once_and_renewed_behind_it(kubeconfig: Path, tmp_path: Path) -> None:
    complete(kubeconfig, tmp_path / "home")
    (names,) = (tmp_path / "home" / "job-names").iterdir()
    names.write_text(json.dumps([f"job-000-{i}" for i in range(10)]))
    os.utime(names, (time.time() - 3600,) * 2)
    assert complete(kubeconfig, tmp_path / "home") < 0.2
    deadline = time.monotonic() + 60
    while len(json.loads(names.read_text())) != JOBS and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "job-0999" in json.loads(names.read_text())
