"""`training.profile`: a readable trace of the steps that were asked for, from a run whose losses stay the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.builders.trainer import runs

from ptapi import run_directory
from ptapi.failures import ExitCode


def run(home: Path, name: str, **training: Any) -> tuple[int, str]:
    (home / "train.jsonl").write_text("".join(json.dumps({"text": f"{i} and {i + 1}"}) + "\n" for i in range(40)))
    spec = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": f"file://{home}/train.jsonl"}},
        "training": {"batchSize": 4, "sequenceLength": 32, **training},
        "export": {"format": "none"},
        "accelerator": {"type": "cpu-1"},
    }
    return runs.end(*runs.start(runs.write_job(home, name, spec)))


def test_a_trace_lies_beside_tensorboards_files_and_changes_no_loss(tmp_path: Path) -> None:
    code, err = run(tmp_path, "traced", steps=5, profile={"start": 3, "steps": 2})
    assert code == 0, err
    code, err = run(tmp_path, "plain", steps=5)
    assert code == 0, err
    assert runs.losses(tmp_path / "runs/traced") == runs.losses(tmp_path / "runs/plain")
    (directory,) = (tmp_path / "runs/traced" / run_directory.TENSORBOARD / "plugins/profile").iterdir()
    (planes,) = directory.glob("*.xplane.pb")
    names = [event.name for plane in jax.profiler.ProfileData.from_file(str(planes)).planes
             for line in plane.lines for event in line.events]  # fmt: skip
    assert names.count("PjitFunction(jit(step))") >= 2
    (events,) = directory.glob("*.trace.json.gz")
    assert json.loads(gzip.decompress(events.read_bytes()))["traceEvents"]
    assert not (tmp_path / "runs/plain" / run_directory.TENSORBOARD / "plugins").exists()


@pytest.mark.parametrize("length", [{"steps": 4}, {"epochs": 0.1}])
def test_a_trace_that_the_run_does_not_reach_is_refused(tmp_path: Path, length: dict[str, float]) -> None:
    code, err = run(tmp_path, "short", **length, profile={"start": 4, "steps": 2})
    assert code == ExitCode.CONFIG_ERROR, err
    assert "spec.training.profile" in err
    assert "Traceback" not in err
