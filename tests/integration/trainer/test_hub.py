"""Models from the hub: the real client against a small server that speaks the hub's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.builders.hubserver import COMMIT, GATED, REPOSITORY, TOKEN, hub


def write_job(directory: Path, name: str, model: str) -> Path:
    data = directory / "train.jsonl"
    data.write_text("\n".join(json.dumps({"question": f"{i}+1?", "answer": f"#### {i + 1}"}) for i in range(16)))
    spec = {
        "model": {"uri": model},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": f"file://{data}"}},
        "training": {"steps": 1, "batchSize": 2, "sequenceLength": 64},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": f"file://{directory}/runs"},
    }
    job = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": name}, "spec": spec}
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def run(job: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pttrainer", "run", str(job)]
    environment = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", **env}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def endpoint(directory: Path) -> Iterator[str]:
    """Serves a model that a first run exported."""
    done = run(write_job(directory, "first", "random://tiny"))
    assert done.returncode == 0, done.stdout + done.stderr
    with hub(directory / "runs" / "first" / "export") as address:
        yield address


def test_a_model_from_the_hub_is_trained_and_its_commit_is_pinned(directory: Path, endpoint: str) -> None:
    job = write_job(directory, "second", f"hf://{REPOSITORY}")
    done = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert COMMIT in (directory / "runs" / "second" / "lineage.json").read_text()


def test_a_model_that_is_not_there_is_a_config_error_that_names_it(directory: Path, endpoint: str) -> None:
    job = write_job(directory, "nobody", "hf://org/nothing")
    done = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"))
    assert done.returncode == 64
    assert "spec.model.uri: hf://org/nothing: no such model" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_gated_model_needs_a_token_that_is_never_shown(directory: Path, endpoint: str) -> None:
    job = write_job(directory, "gated", f"hf://{GATED}")
    refused = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"))
    assert refused.returncode == 64
    assert "spec.model.tokenSecretRef" in refused.stderr + refused.stdout
    allowed = run(job, HF_ENDPOINT=endpoint, HF_HOME=str(directory / "cache"), HF_TOKEN=TOKEN)
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr
    assert TOKEN not in allowed.stdout + allowed.stderr
    written = [path for path in (directory / "runs" / "gated").rglob("*") if path.is_file()]
    assert [path for path in written if TOKEN.encode() in path.read_bytes()] == []
