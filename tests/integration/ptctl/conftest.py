"""ptctl as a program of its own, against the session's cluster, in which the operator runs."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ptkube.errors import ApiError
from ptkube.resources import NAMESPACES, POSTTRAINJOBS

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def namespace(cluster: Any, kubeconfig: Path) -> Iterator[str]:
    """A namespace of the test's own; its jobs are deleted while the operator still runs."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.kube.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    for item in cluster.kube.list(POSTTRAINJOBS, name).items:
        with suppress(ApiError):
            cluster.kube.delete(POSTTRAINJOBS, item["metadata"]["name"], name)
    with suppress(ApiError):
        cluster.kube.delete(NAMESPACES, name)


@pytest.fixture
def ptctl_command(kubeconfig: Path, namespace: str) -> Callable[..., list[str]]:
    """The command line of `ptctl WORDS` in the test's namespace."""

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "ptctl", *words, "--kubeconfig", str(kubeconfig), "-n", namespace]

    return command


@pytest.fixture
def ptctl(ptctl_command: Callable[..., list[str]], tmp_path: Path) -> Run:
    """Run `ptctl WORDS`; never raises on a failing command."""

    def run(*words: str, stdin: str | None = None, timeout_s: float = 900.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ptctl_command(*words),
            input=stdin,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
        )

    return run


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., str]:
    """A small job as YAML, with data of its own; suspended unless told otherwise, so that no chip is used."""
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i} plus 1?", "completion": str(i + 1)}) + "\n" for i in range(64)))

    def make(name: str, *, steps: int = 3, suspend: bool = True, data: Path = data) -> str:
        return (
            f"apiVersion: posttrain.dev/v1alpha1\nkind: PostTrainJob\nmetadata: {{name: {name}, labels: {{team: x}}}}\n"
            "spec:\n  model: {uri: random://tiny}\n  algorithm: {sft: {}}\n"
            f"  data: {{train: {{uri: {data.as_uri()}}}}}\n"
            f"  training: {{steps: {steps}, batchSize: 8, sequenceLength: 64}}\n"
            f"  runPolicy: {{suspend: {str(suspend).lower()}, terminationGracePeriodSeconds: 30}}\n"
            f"  accelerator: {{type: cpu-1}}\n  output: {{uri: {tmp_path.as_uri()}/runs}}\n"
        )

    return make
