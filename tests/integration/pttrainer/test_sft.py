"""SFT by real, small runs: it learns, survives every kind of end to the bit, and refuses what it cannot do."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import runs
from tests.builders.trainer.runs import exported, metrics, progress, termination

from ptapi import run_directory
from ptapi.failures import ExitCode

STEPS = 12


def job(home: Path, name: str, into: Path | None = None, **changes: Any) -> Path:
    return runs.job(
        home, name, {"training": {"steps": STEPS}, "output": {"uri": f"file://{into or home / 'runs'}"}}, changes
    )


def start(home: Path, path: Path, **environment: str) -> runs.Attempt:
    """Forked: how it begins is the reference's to show."""
    return runs.command("run", str(path), env={**as_users_compile(home), **environment})


def as_users_compile(home: Path) -> dict[str, str]:
    """Which other rooms' runs do not."""
    return {"XLA_FLAGS": "", "JAX_COMPILATION_CACHE_DIR": str(home / "xla")}


def finish(process: runs.Attempt) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=900)
    assert process.returncode is not None
    return process.returncode, out, err


def run(home: Path, path: Path, **environment: str) -> tuple[int, str, str]:
    return finish(start(home, path, **environment))


def directory_of(home: Path, name: str) -> Path:
    return home / "runs" / name


@pytest.fixture(scope="module")
def reference(home: Path) -> Path:
    """The run directory of a run that nothing happened to, in a process that began as users' do."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pttrainer", "run", str(job(home, "reference"))],
        env={**clean, "JAX_COMPILATION_CACHE_DIR": str(home / "xla")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [
        f"step {i}/{STEPS}" for i in range(1, STEPS + 1)
    ]
    return directory_of(home, "reference")


def test_a_run_learns_and_leaves_a_whole_run_directory(reference: Path) -> None:
    losses = [line["loss"] for line in metrics(reference)]
    assert losses[0] == pytest.approx(5.6, abs=0.2)  # about ln 264
    assert losses[-1] < 0.75 * losses[0]
    reported = progress(reference)
    assert (reported.stage, reported.step, reported.total_steps) == ("done", STEPS, STEPS)
    assert reported.checkpoint is not None
    assert reported.checkpoint.step == STEPS
    assert Path(reported.checkpoint.uri.removeprefix("file://")).is_dir()
    assert termination(reference).exit_code == 0
    for name in (
        run_directory.OWNER,
        run_directory.SPEC,
        run_directory.LINEAGE,
        run_directory.TENSORBOARD,
        "export/config.json",
    ):
        assert (reference / name).exists(), name


def test_killed_again_and_again_a_run_ends_as_if_nothing_had_happened(home: Path, reference: Path) -> None:
    path = job(home, "killed")
    kills = runs.killed_again_and_again(lambda: start(home, path), random.Random(0))
    assert kills >= 2
    assert metrics(directory_of(home, "killed")) == metrics(reference)
    assert exported(directory_of(home, "killed")) == exported(reference)


def test_sigterm_saves_says_so_and_the_next_attempt_goes_on(home: Path, reference: Path, tmp_path: Path) -> None:
    path = job(home, "asked", checkpoint={"everySteps": 1000})
    environment = {**as_users_compile(home), "POSTTRAIN_TERMINATION_LOG": str(tmp_path / "log")}
    process = runs.held(path, 4, tmp_path / "goes-on", environment)
    runs.reached(process, 3)
    process.send_signal(signal.SIGTERM)
    (tmp_path / "goes-on").touch()
    code, _, err = finish(process)
    assert code == ExitCode.PREEMPTED_SAVED, err
    last_words = run_directory.Termination.model_validate_json((tmp_path / "log").read_text())
    assert last_words.failure_class == "Preempted"
    assert f"stopped by SIGTERM at step {last_words.step}: checkpoint saved" in last_words.message
    assert 3 <= last_words.step < STEPS
    assert "Traceback" not in err
    code, out, err = run(home, path)
    assert code == 0, err
    assert f"resuming after step {last_words.step}" in err
    assert out.startswith(f"step {last_words.step + 1}/")
    assert metrics(directory_of(home, "asked")) == metrics(reference)
    assert exported(directory_of(home, "asked")) == exported(reference)


def test_a_finished_run_started_again_only_exports_again(home: Path, reference: Path) -> None:
    before = metrics(reference), exported(reference)
    (reference / run_directory.EXPORT / "config.json").unlink()
    code, out, err = run(home, home / "reference.yaml")
    assert (code, out) == (0, ""), err
    assert (metrics(reference), exported(reference)) == before
    assert (reference / run_directory.EXPORT / "config.json").exists()


def test_the_export_is_a_model_that_another_job_starts_from(home: Path, reference: Path) -> None:
    path = job(
        home,
        "second",
        model={"uri": f"file://{reference}/export"},
        data={"train": {"uri": f"file://{home}/train.jsonl"}, "eval": {"uri": f"file://{home}/eval.jsonl"}},
        training={"steps": 1},
    )
    code, _, err = run(home, path)
    assert code == 0, err
    lines = metrics(directory_of(home, "second"))
    assert [line["step"] for line in lines] == [0, 1]
    assert lines[0]["eval/loss"] == pytest.approx(metrics(reference)[-1]["loss"], abs=0.4)
    assert lines[1]["eval/loss"] < lines[0]["eval/loss"]


def test_eight_devices_and_micro_batches_give_the_curve_of_one(home: Path, reference: Path) -> None:
    training = {"microBatchSize": 4, "parallelism": {"data": 2, "fsdp": 2, "tensor": 2}}
    runs.run(job(home, "eight", accelerator={"type": "cpu-8"}, training=training))
    assert_same_curve(directory_of(home, "eight"), reference)


def test_two_processes_give_the_curve_of_one(home: Path, reference: Path) -> None:
    path = job(home, "two", accelerator={"type": "cpu-1", "slices": 2})
    results = [finish(process) for process in runs.start(path, processes=2)]
    assert [code for code, _, _ in results] == [0, 0], results
    assert_same_curve(directory_of(home, "two"), reference)
    assert "step 1/" not in results[1][1]


def assert_same_curve(directory: Path, reference: Path) -> None:
    for got, wanted in zip(metrics(directory), metrics(reference), strict=True):
        assert got["loss"] == pytest.approx(wanted["loss"], abs=2e-3)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds one checkpoint and not two."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2100k", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_is_said_clearly_and_the_last_good_checkpoint_is_used_later(home: Path, small_disk: Path) -> None:
    path = job(home, "full", into=small_disk, checkpoint={"everySteps": 2, "keep": 1})
    code, _, err = run(home, path)
    assert code == ExitCode.STORAGE
    assert "no space left" in err.lower()
    assert "Traceback" not in err
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    code, out, err = run(home, path)
    assert code == 0, err
    assert "resuming after step 2" in err
    assert out.startswith("step 3/")


def test_a_disk_without_room_for_anything_is_said_clearly(home: Path, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * (2100 * 1024 - 8192))
    code, _, err = run(home, job(home, "nothing", into=small_disk))
    assert code == ExitCode.STORAGE, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("part", "uri", "wanted", "message"),
    [
        ("data", "file:///nowhere", ExitCode.DATA_ERROR, "spec.data.train.uri: file:///nowhere: no such file"),
        ("model", "random://huge", ExitCode.CONFIG_ERROR, "random://huge: no such preset; accepted:"),
        ("model", "file:///nowhere", ExitCode.CONFIG_ERROR, "spec.model.uri: file:///nowhere: no such directory"),
        ("output", "file:///proc/nowhere", ExitCode.STORAGE, "/proc/nowhere/"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_with_its_exit_code(
    home: Path, tmp_path: Path, part: str, uri: str, wanted: ExitCode, message: str
) -> None:
    path = job(home, "refused", **{part: {"train": {"uri": uri}} if part == "data" else {"uri": uri}})
    code, out, err = run(home, path, POSTTRAIN_TERMINATION_LOG=str(tmp_path / "log"))
    assert code == wanted, err
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert json.loads((tmp_path / "log").read_text())["exitCode"] == wanted


def test_the_directory_of_another_job_is_refused(home: Path, reference: Path) -> None:
    before = (reference / run_directory.OWNER).read_text()
    owner = json.loads(before)
    (reference / run_directory.OWNER).write_text(json.dumps({**owner, "name": "somebody-else"}))
    try:
        code, _, err = run(home, home / "reference.yaml")
    finally:
        (reference / run_directory.OWNER).write_text(before)
    assert code == ExitCode.CONFIG_ERROR
    assert "belongs to another job" in err
    assert termination(reference).exit_code == 0  # the other job's own word is not replaced


def test_a_missing_job_file_and_a_wrong_command_line(home: Path) -> None:
    code, _, err = run(home, home / "nowhere.yaml")
    assert (code, "cannot be read" in err) == (ExitCode.CONFIG_ERROR, True)
    done = subprocess.run([sys.executable, "-m", "pttrainer", "walk"], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert "Traceback" not in done.stderr
