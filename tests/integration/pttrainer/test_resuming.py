"""An edited job under the name of a run that has begun, by real, small runs: refused, going on, or starting over."""

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.trainer import runs

from ptapi import run_directory
from ptapi.failures import ExitCode

STEPS = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of all runs here."""
    directory = tmp_path_factory.mktemp("resuming")
    for name, start in (("train", 0), ("other", 40)):
        runs.write_rows(directory / f"{name}.jsonl", runs.SUMS[start:])
    return directory


def job(home: Path, name: str = "edited", data: Path | str | None = None, **changes: Any) -> Path:
    source = {"train": {"uri": f"file://{data or home / 'train.jsonl'}"}}
    return runs.job(home, name, {"data": source, "training": {"steps": STEPS}}, changes)


@pytest.fixture(scope="module")
def killed(home: Path) -> Path:
    """The directory of a run that was killed after its first checkpoint."""
    runs.killed(job(home), 5)  # the checkpoint of step 2 is whole once that of step 4 has begun
    return home / "runs" / "edited"


def digests(directory: Path) -> dict[str, str]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def again(killed: Path, tmp_path: Path) -> Path:
    """A copy of the killed run in a place of its own."""
    shutil.copytree(killed, tmp_path / "runs" / "edited")
    return tmp_path / "runs" / "edited"


def checkpoint(directory: Path) -> int:
    return max(int(path.name) for path in (directory / run_directory.CHECKPOINTS).iterdir() if path.name.isdigit())


@pytest.mark.parametrize(
    ("rate", "data", "code", "message"),
    [
        (1e-3, "train", ExitCode.CONFIG_ERROR, "spec.training.optimizer.learningRate: was 0.003, is 0.001"),
        (3e-3, "other", ExitCode.DATA_ERROR, "/other.jsonl, whose content differs: was"),
    ],
)
def test_an_edited_job_is_refused_and_the_run_stays_as_it_was(
    home: Path, killed: Path, rate: float, data: str, code: ExitCode, message: str
) -> None:
    before = digests(killed)
    path = job(home, data=home / f"{data}.jsonl", training={"optimizer": {"learningRate": rate}})
    runs.refused(path, code, message)
    assert digests(killed) == before


def test_more_steps_and_another_interval_go_on_and_are_named(home: Path, killed: Path, tmp_path: Path) -> None:
    directory = again(killed, tmp_path)
    shutil.copy(home / "train.jsonl", tmp_path)
    path = job(tmp_path, data=tmp_path / "train.jsonl", training={"steps": 8}, checkpoint={"everySteps": 3})
    output = runs.run(path)
    for line in (
        "spec.training.steps: was 6, is 8; the cosine schedule then covers the new length",
        "spec.checkpoint.everySteps: was 2, is 3",
        f"spec.data.train.uri: was file://{home}/train.jsonl, is file://{tmp_path}/train.jsonl",
    ):
        assert f"changed since the last attempt: {line}" in output
    assert "resuming after step" in output
    assert [line["step"] for line in runs.lines(directory)] == list(range(1, 9))
    changes = runs.lineage(directory)["changes"]
    assert {"step": checkpoint(killed), "field": "spec.training.steps", "from": "6", "to": "8"} in changes
    assert "changed" not in (output := runs.run(path))
    assert "resuming after step 8, the last one: there is nothing left to train" in output


def test_rows_that_changed_between_attempts_are_refused_by_the_file_s_name(
    home: Path, killed: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "train.jsonl"
    shutil.copy(home / "train.jsonl", rows)
    path = job(tmp_path, data=rows, training={"steps": 2})
    runs.run(path)
    before = digests(tmp_path / "runs" / "edited")
    rows.write_bytes(rows.read_bytes()[:-1] + b" ")
    output = runs.refused(path, ExitCode.DATA_ERROR)
    assert re.search(
        rf"spec\.data\.train\.uri: file://{rows}: was [\d,]+ bytes \(sha256 \w+\), is [\d,]+ bytes", output
    )
    assert digests(tmp_path / "runs" / "edited") == before


def test_starting_over_keeps_the_old_run_beside_the_new_one(home: Path, killed: Path, tmp_path: Path) -> None:
    directory = again(killed, tmp_path)
    before = digests(directory)
    path = job(tmp_path, data=home / "other.jsonl", training={"steps": 1})
    code, output = runs.end(runs.command("run", str(path), "--fresh"))
    assert code == 0, output
    kept = directory.with_name("edited.previous-1")
    assert f"is kept as file://{kept}" in output
    assert digests(kept) == before
    assert [line["step"] for line in runs.lines(directory)] == [1]


def test_the_fork_that_a_refusal_names_begins_a_new_run(home: Path, killed: Path, tmp_path: Path) -> None:
    again(killed, tmp_path)
    edited = {"training": {"steps": 1, "optimizer": {"learningRate": 1e-3}}}
    output = runs.refused(job(tmp_path, data=home / "train.jsonl", **edited), ExitCode.CONFIG_ERROR)
    hinted = re.search(r"`(checkpoint: .*?)`", output)
    assert hinted is not None
    fork = yaml.safe_load(hinted[1])
    assert "forking from" in runs.run(job(tmp_path, "forked", data=home / "train.jsonl", **edited, **fork))


def test_a_whole_fork_that_has_no_step_left_is_refused(home: Path, killed: Path) -> None:
    done = checkpoint(killed)
    fork = {"fork": {"uri": f"file://{killed}/checkpoints/{done}", "state": "full"}}
    words = f"has done {done} steps, and this job has {done}; accepted: at least {done + 1}"
    runs.refused(job(home, "whole", training={"steps": done}, checkpoint=fork), ExitCode.CONFIG_ERROR, words)
