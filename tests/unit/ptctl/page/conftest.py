"""The page's server in this process, on the fake cluster and on folders of runs."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from ptctl.page.access import TokenAccess
from ptctl.page.answers import Answers
from ptctl.page.job_sources import ClusterJobs, JobSource
from ptctl.page.server import application
from ptkube.client import Kube

Client = TestClient[Any, Any]
Serve = Callable[..., Awaitable[Client]]
WHEN = {"started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:10:00Z"}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start the server of a source; its client has the token's cookie unless told otherwise."""
    clients: list[Client] = []

    async def start(source: JobSource, *, with_token: bool = True) -> Client:
        client = TestClient(TestServer(application(TokenAccess(Answers(source), "secret"))))
        clients.append(client)
        await client.start_server()
        if with_token:
            assert (await client.get("/?token=secret")).status == 200
        return client

    yield start
    for client in clients:
        await client.close()


@pytest.fixture
def cluster(kube: Any) -> ClusterJobs:
    return ClusterJobs(cast(Kube, kube))


@pytest.fixture
def make_run(tmp_path: Path, make_job: Callable[..., Any]) -> Callable[..., Path]:
    """A run directory as the trainer leaves it."""

    def make(name: str, *, steps: int = 20, samples: tuple[int, ...] = (5, 10)) -> Path:
        folder = tmp_path / "runs" / name
        (folder / "samples").mkdir(parents=True)
        job = make_job(name, spec={"output": {"uri": f"file://{tmp_path}/runs"}})
        (folder / "spec.yaml").write_text(
            json.dumps({key: job[key] for key in ("apiVersion", "kind", "metadata", "spec")})
        )
        rows = [{"step": i, "time": 1000.0 + i, "loss": 1 / i, "reward": i / steps} for i in range(1, steps + 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "progress.json").write_text(
            json.dumps({"step": steps, "totalSteps": steps, "metrics": {"loss": 0.05}, **WHEN})
        )
        (folder / "termination.json").write_text('{"exitCode": 0}')
        for step in samples:
            sample = {
                "prompt": f"P{step}",
                "completion": "<script>",
                "reward": 1.0,
                "rewards": {"a": 1.0},
                "advantage": 0.5,
            }
            (folder / "samples" / f"step-{step:08d}.jsonl").write_text(json.dumps(sample) + "\n")
        return folder

    return make
