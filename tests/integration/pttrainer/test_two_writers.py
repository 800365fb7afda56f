"""Two trainers of one run directory: the second is refused, or the first was away and ends; each step is there once."""

import os
import signal
from pathlib import Path

import pytest
from tests.builders.trainer import runs, writer
from tests.builders.trainer.runs import end, exported, held, lines, metrics, progress, reached, termination

from ptapi import run_directory
from ptapi.failures import ExitCode

STEPS = 40


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    """The directory of a run that nothing happened to."""
    runs.run(job(home, "whole"))
    return home / "runs" / "whole"


def job(home: Path, name: str) -> Path:
    training = {"steps": STEPS, "batchSize": 4, "sequenceLength": 64, "optimizer": {"learningRate": 1e-3}}
    return runs.job(home, name, training=training, checkpoint={"everySteps": 10})


def is_as_if_nothing_had_happened(run: Path, whole: Path) -> bool:
    return metrics(run) == metrics(whole) and exported(run) == exported(whole)


def test_a_second_trainer_is_refused_with_who_writes_there_and_the_first_ends_well(home: Path, whole: Path) -> None:
    path, run = job(home, "twice"), home / "runs" / "twice"
    first = held(path, 2, home / "twice-goes-on")
    reached(first, 1)
    owner = (run / run_directory.OWNER).read_bytes()
    writing = f"file://{run}: ptctl train on {os.uname().nodename}, pid {first.pid} (since "
    assert "waiting for" not in runs.refused(path, ExitCode.OUTPUT_CONFLICT, writing)
    assert first.poll() is None
    (home / "twice-goes-on").touch()
    assert not (run / run_directory.TERMINATION).exists()
    assert (run / run_directory.OWNER).read_bytes() == owner
    code, errors = end(first)
    assert code == ExitCode.OK, errors
    assert [line["step"] for line in lines(run)] == list(range(1, STEPS + 1))
    assert is_as_if_nothing_had_happened(run, whole)
    assert (progress(run).attempt, progress(run).stage) == (1, "done")


def test_a_trainer_that_was_stopped_writes_nothing_more_once_another_has_taken_over(home: Path, whole: Path) -> None:
    path, run = job(home, "stopped"), home / "runs" / "stopped"
    quick = {"POSTTRAIN_LEASE_SECONDS": "2"}
    first = held(path, 26, home / "goes-on", {**quick, run_directory.TERMINATION_LOG_ENV: str(home / "log")})
    reached(first, 25)
    first.send_signal(signal.SIGSTOP)
    second = runs.command("run", str(path), env=quick)
    reached(second, 1)
    (home / "goes-on").touch()
    first.send_signal(signal.SIGCONT)
    code, errors = end(first)
    assert code == ExitCode.OUTPUT_CONFLICT, errors
    assert f"pid {second.pid} has held the lease since" in errors
    assert "Traceback" not in errors
    last_words = run_directory.Termination.model_validate_json((home / "log").read_text())
    assert (last_words.exit_code, last_words.failure_class) == (ExitCode.OUTPUT_CONFLICT, "OutputConflict")
    code, errors = end(second)
    assert code == ExitCode.OK, errors
    assert f"waiting for ptctl train on {os.uname().nodename}, pid {first.pid}" in errors
    assert "resuming after step" in errors
    assert is_as_if_nothing_had_happened(run, whole)
    assert termination(run).exit_code == ExitCode.OK


def test_of_a_run_of_two_processes_both_are_refused_where_somebody_writes(home: Path) -> None:
    path, uri = job(home, "pair"), f"file://{home}/runs/pair"
    other = writer.start(uri, "--host", "laptop-a")
    try:
        writer.taken(other)
        ends = [end(process) for process in runs.start(path, processes=2)]
    finally:
        other.kill()
    assert [code for code, _ in ends] == [ExitCode.OUTPUT_CONFLICT] * 2, ends
    assert f"{uri}: ptctl train on laptop-a, pid {other.pid} (since " in ends[0][1]
    assert f"error: the leading process: spec.output.uri: {uri}: ptctl train on laptop-a" in ends[1][1]
    assert sorted(file.name for file in (home / "runs" / "pair").iterdir()) == [run_directory.LEASE, writer.LINES]
