"""`ptctl workload tensorboard` of a job whose TensorBoard runs in the cluster."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from ptctl.port_forwards import tensorboard_forward
from ptkube.resources import DEPLOYMENTS, POSTTRAINJOBS, Manifest
from ptoperator.kube import labels
from ptoperator.render.tensorboard import tensorboard_name

Invoke = Callable[..., Any]
BOARD = tensorboard_name("gs://lab/runs")


@pytest.fixture
def served(kube: Any, make_job: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A job with a TensorBoard in the cluster; the commands that are run."""
    kube.put(POSTTRAINJOBS, make_job("a", spec={"output": {"uri": "gs://lab/runs"}, "tensorboard": {"server": True}}))
    commands: list[list[str]] = []
    monkeypatch.setattr(tensorboard_forward.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "call", lambda command: commands.append(command) or 0)
    return commands


def test_it_says_that_somebody_looks_waits_and_forwards_the_port(
    invoke: Invoke, kube: Any, served: list[list[str]]
) -> None:
    board = {"metadata": {"name": BOARD, "namespace": "default"}, "status": {"readyReplicas": 1}}
    kube.put(DEPLOYMENTS, board)
    result = invoke("workload", "tensorboard", "a", "--port", "7007", "--no-browser")
    assert result.code == 0, result.err
    assert served == [["kubectl", "-n", "default", "port-forward", f"service/{BOARD}", "7007:6006"]]
    assert "http://localhost:7007/" in result.err
    (name, namespace, body) = next(arguments for verb, arguments in kube.calls if verb == "patch")
    assert (name, namespace) == ("a", "default")
    assert body["metadata"]["annotations"][labels.TENSORBOARD_UNTIL].endswith("Z")


def test_a_board_that_does_not_come_is_explained(
    invoke: Invoke, served: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard_forward, "START_TIMEOUT_S", 0.0)
    result = invoke("workload", "tensorboard", "a")
    assert (result.code, served) == (1, [])
    assert f"Deployment {BOARD} has no ready pod" in result.err


def test_without_kubectl_the_hint_says_what_is_missing(
    invoke: Invoke, served: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard_forward.shutil, "which", lambda name: None)
    result = invoke("workload", "tensorboard", "a")
    assert (result.code, served) == (1, [])
    assert "kubectl is not installed" in result.err
