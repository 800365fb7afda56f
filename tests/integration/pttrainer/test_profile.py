"""`training.profile`: a readable trace of the steps that were asked for, from a run whose losses stay the same."""

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.builders.trainer import runs

from ptapi import run_directory
from ptapi.failures import ExitCode


def job(home: Path, name: str, **training: Any) -> Path:
    runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    small = {"batchSize": 4, "sequenceLength": 64}
    return runs.job(home, name, training={**small, **training}, export={"format": "none"})


def test_a_trace_lies_beside_tensorboards_files_and_changes_no_loss(tmp_path: Path) -> None:
    runs.run(job(tmp_path, "traced", steps=5, profile={"start": 3, "steps": 2}))
    runs.run(job(tmp_path, "plain", steps=5))
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
    path = job(tmp_path, "short", **length, profile={"start": 4, "steps": 2})
    runs.refused(path, ExitCode.CONFIG_ERROR, "spec.training.profile")
