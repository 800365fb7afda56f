"""Ctrl-C and kill -9, at any moment: one line, no traceback, and no trainer left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.builders.cluster.manifests import eventually

AT_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from ptctl.__main__ import main
main({words!r})
"""
"""Interrupts itself at the moment when it begins to import a module."""

MODULES = {
    "validate": ("click", "ptctl.cli", "ptctl.commands.job_file.validate", "yaml", "pydantic", "ptapi.validation"),
    "train": ("ptctl.ui.exit_codes", "ptctl.jobs.definition.file", "ptctl.trainer_process"),
    "demo": ("ptctl.ui.app", "ptctl.demo.script", "ptctl.demo.display"),
    "workload list": ("ptctl.commands.workload", "ptkube.client", "ssl"),
}


@pytest.fixture
def job_file(job: Callable[..., str], tmp_path: Path) -> Path:
    """A job that runs until somebody stops it."""
    path = tmp_path / "job.yaml"
    path.write_text(job("solo", steps=100_000))
    return path


@pytest.mark.parametrize(("verb", "module"), [(verb, module) for verb in MODULES for module in MODULES[verb]])
def test_ctrl_c_while_ptctl_starts_is_one_line_and_130(job_file: Path, verb: str, module: str) -> None:
    flags = ["-f", str(job_file)] if verb in ("validate", "train") else ["--dir", str(job_file.parent / "out")]
    words = [*verb.split(), *(flags if verb != "workload list" else [])]
    done = subprocess.run(
        [sys.executable, "-c", AT_IMPORT.format(module=module, words=words)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=job_file.parent,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


@pytest.fixture
def train(job_file: Path) -> Iterator[subprocess.Popen[str]]:
    """`ptctl train` in a session of its own, as from a terminal."""
    with subprocess.Popen(
        [sys.executable, "-m", "ptctl", "train", "-f", str(job_file)],
        cwd=job_file.parent,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # or the end of a test that failed would wait for it
            for left in in_session(process.pid):
                left.kill()


def in_session(leader: int) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if p.pid != leader and _session(p) == leader]


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else 0
    except (ProcessLookupError, psutil.NoSuchProcess):
        return 0


def until_trainer_starts(train: subprocess.Popen[str]) -> psutil.Process:
    while not (trainers := in_session(train.pid)):
        assert train.poll() is None
        time.sleep(0.01)
    return trainers[0]


def until_step_1(train: subprocess.Popen[str]) -> None:
    assert train.stdout is not None
    while "step 1/" not in (line := train.stdout.readline()):
        assert line, "the trainer ended before its first step"


@pytest.mark.parametrize("later_s", [0.0, 0.5, 2.0])
def test_ctrl_c_while_the_trainer_starts_prints_no_traceback(train: subprocess.Popen[str], later_s: float) -> None:
    until_trainer_starts(train)
    time.sleep(later_s)
    os.killpg(train.pid, signal.SIGINT)
    _, err = train.communicate(timeout=300)
    assert train.returncode == 130
    assert err.count("Interrupted.") == 1
    assert "Traceback" not in err
    eventually(lambda: in_session(train.pid) == [])


def test_ctrl_c_is_acknowledged_at_once_and_the_second_ends_a_trainer_that_does_not_react(
    train: subprocess.Popen[str],
) -> None:
    until_trainer_starts(train).suspend()
    train.send_signal(signal.SIGINT)
    assert train.stderr is not None
    while not (line := train.stderr.readline()).startswith("Interrupted. The trainer saves a checkpoint"):
        assert line, "not acknowledged"
    train.send_signal(signal.SIGINT)
    assert train.wait(timeout=300) == 130
    eventually(lambda: in_session(train.pid) == [])


@pytest.mark.parametrize("is_training", [False, True])
def test_no_trainer_outlives_a_ptctl_that_is_killed(train: subprocess.Popen[str], is_training: bool) -> None:
    until_trainer_starts(train)
    if is_training:
        until_step_1(train)
    train.kill()
    train.communicate(timeout=300)  # until the end of all that writes to its pipes
    eventually(lambda: in_session(train.pid) == [])  # a process closes its pipes before it is gone


def test_ctrl_c_while_python_ends_keeps_the_exit_code() -> None:
    """What is registered first runs last, behind what ptctl registers: then Python gives up its handlers."""
    code = """
import atexit, os, signal
from ptctl.ui import interrupts
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
interrupts.install()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
