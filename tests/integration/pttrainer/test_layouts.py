"""Runs that change their devices: checkpoints of one mesh continued on another, more processes, peers that hang."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import runs
from tests.builders.trainer.runs import losses, run, start

from ptapi import run_directory
from ptapi.failures import ExitCode

STEPS, HALF = 6, 3
TOLERANCE = 1e-4
"""Relative, of the loss; Adam's steps magnify what layouts round differently."""


def job(home: Path, name: str, devices: int = 1, slices: int = 1, **parts: Any) -> Path:
    common = {
        "training": {"steps": STEPS, "sequenceLength": 64, "schedule": {"kind": "constant"}},
        "checkpoint": {"everySteps": HALF, "keep": 5},
        "tensorboard": {"enabled": False},
        "accelerator": {"type": f"cpu-{devices}", "slices": slices},
    }
    return runs.job(home, name, common, parts)


@pytest.fixture(scope="module")
def eight(home: Path) -> list[float]:
    """The curve of a run on eight devices, whose run directory has the checkpoint of its half, too."""
    run(job(home, "eight", devices=8, training={"parallelism": {"fsdp": 8}}))
    return losses(home / "runs" / "eight")


def halved(home: Path, name: str) -> None:
    """A run directory as the run on eight devices left it when half of it was done."""
    target = home / "runs" / name
    shutil.copytree(home / "runs" / "eight", target)
    shutil.rmtree(target / run_directory.CHECKPOINTS / str(STEPS))
    owner = json.loads((target / run_directory.OWNER).read_text())
    (target / run_directory.OWNER).write_text(json.dumps({**owner, "name": name}))


@pytest.mark.parametrize(
    ("name", "devices", "processes", "parallelism"),
    [("one", 1, 1, {}), ("mixed", 8, 1, {"tensor": 2, "fsdp": 4}), ("processes", 2, 2, {"fsdp": 4})],
)
def test_a_checkpoint_of_eight_devices_goes_on_elsewhere(
    home: Path, eight: list[float], name: str, devices: int, processes: int, parallelism: dict[str, int]
) -> None:
    halved(home, name)
    path = job(home, name, devices, processes, training={"parallelism": parallelism})
    assert f"resuming after step {HALF}" in run(path, processes)
    assert losses(home / "runs" / name) == pytest.approx(eight, rel=TOLERANCE)


def test_four_processes_give_the_curve_of_eight_devices_in_one(home: Path, eight: list[float]) -> None:
    run(job(home, "four", 1, 4, training={"parallelism": {"data": 2, "fsdp": 2}}), processes=4)
    assert losses(home / "runs" / "four") == pytest.approx(eight, rel=TOLERANCE)


def test_a_full_fork_goes_on_where_the_other_run_was(home: Path, eight: list[float]) -> None:
    fork = {"uri": f"file://{home}/runs/eight/checkpoints/{HALF}", "state": "full"}
    output = run(job(home, "forked", 8, training={"parallelism": {"fsdp": 8}}, checkpoint={"fork": fork}))
    assert f"forking from {fork['uri']} (full state)" in output
    assert losses(home / "runs" / "forked") == eight[HALF:]
    assert runs.lineage(home / "runs" / "forked")["fork"] == {"uri": fork["uri"], "step": HALF}


def test_the_best_evaluation_is_exported_and_weights_fork_from_it(home: Path) -> None:
    data = {"train": {"uri": f"file://{home}/train.jsonl"}, "eval": {"uri": f"file://{home}/eval.jsonl"}}
    path = job(
        home,
        "best",
        training={"optimizer": {"learningRate": 0.3}, "schedule": {"kind": "linear", "warmupFraction": 1.0}},
        data=data,
        evaluation={"everySteps": 1},
        checkpoint={"everySteps": 100, "keep": 1, "best": {}},
        export={"checkpoint": "best"},
    )
    output = run(path)
    directory = home / "runs" / "best"
    best = run_directory.Best.model_validate_json((directory / run_directory.BEST).read_text()).checkpoints[0]
    assert 0 < best.step < STEPS  # the rate grows until it diverges
    assert f"exporting step {best.step}, the best" in output
    assert sorted(p.name for p in (directory / run_directory.CHECKPOINTS).iterdir() if p.name.isdigit()) == sorted(
        [str(best.step), str(STEPS)]
    )
    assert runs.progress(directory).best == best
    fork = {"uri": f"file://{directory}/checkpoints/{best.step}"}
    run(job(home, "again", training={"steps": 1}, data=data, checkpoint={"fork": fork}))
    first = runs.lines(home / "runs" / "again")[0]
    assert (first["step"], first["eval/loss"]) == (0, pytest.approx(best.value, rel=1e-6))


def test_a_rank_whose_peer_stands_still_ends_as_a_hang_and_the_run_goes_on_later(home: Path) -> None:
    options: dict[str, Any] = {"training": {"steps": 4000}, "checkpoint": {"everySteps": 5}}
    path = job(home, "hanging", 1, 2, runPolicy={"hangTimeoutSeconds": 15}, **options)
    leader, peer = start(path, processes=2)
    try:
        runs.reached(leader, 12)
        peer.send_signal(signal.SIGSTOP)
        out, err = leader.communicate(timeout=900)
        assert leader.returncode == ExitCode.HANG, (out[-500:], err[-2000:])
    finally:
        for process in (leader, peer):
            process.kill()
            process.communicate()
    directory = home / "runs" / "hanging"
    termination = runs.termination(directory)
    assert termination.failure_class == "Hang"
    assert termination.step >= 11
    assert "in _steps" in (directory / run_directory.stack_file(1, 0)).read_text()
    second = job(home, "hanging", 1, 2, training={"steps": termination.step + 2}, checkpoint={"everySteps": 5})
    assert "resuming after step" in run(second, processes=2)
