"""`ptctl workload connect`: the address of a headless job's chips."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from ptkube.resources import PODS, POSTTRAINJOBS
from ptoperator.kube import labels

Invoke = Callable[..., Any]
HEADLESS = {"pathways": {"enabled": True, "headless": True}}


@pytest.fixture
def job(kube: Any, make_job: Callable[..., Any]) -> Any:
    made = make_job("a", spec=HEADLESS)
    return kube.put(POSTTRAINJOBS, {**made, "status": {**made.get("status", {}), "jobSet": "a-cut"}})


@pytest.mark.usefixtures("job")
def test_it_prints_the_variables_for_a_program_in_the_cluster(invoke: Invoke) -> None:
    out = invoke("workload", "connect", "a").out
    assert out == "JAX_PLATFORMS=proxy JAX_BACKEND_TARGET=grpc://a-cut-pathways-head-0-0.a-cut.default:29000\n"


def test_a_job_that_is_not_headless_has_no_address(invoke: Invoke, kube: Any, make_job: Callable[..., Any]) -> None:
    kube.put(POSTTRAINJOBS, make_job("b"))
    result = invoke("workload", "connect", "b")
    assert result.code == 1
    assert "b is not a headless Pathways job" in result.err
    assert "headless: true" in result.err


@pytest.mark.usefixtures("job")
def test_forward_runs_kubectl_on_the_head_and_says_what_to_set(
    invoke: Invoke, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "call", lambda command: ran.append(command) or 0)
    assert "is not running yet" in invoke("workload", "connect", "a", "--forward").err
    for role in ("pathways-worker", "pathways-head"):
        marks = {labels.JOB: "a", labels.REPLICATED_JOB_NAME: role}
        meta = {"name": f"a-cut-{role}-0-0-x7k2p", "namespace": "default", "labels": marks}
        kube.put(PODS, {"metadata": meta, "status": {"phase": "Running"}})
    result = invoke("workload", "connect", "a", "--forward", "--port", "3000")
    assert (result.code, result.out) == (0, "")
    assert "JAX_BACKEND_TARGET=grpc://localhost:3000" in result.err
    assert ran == [["kubectl", "-n", "default", "port-forward", "pod/a-cut-pathways-head-0-0-x7k2p", "3000:29000"]]
