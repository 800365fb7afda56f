"""The hang watchdog: how long is too long, and what is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ptapi import rundir
from ptapi.failures import ExitCode
from pttrainer import watchdog
from pttrainer.progress import Beat
from pttrainer.storage import Directory
from pttrainer.watchdog import Watchdog, limit_s


def beat(stage: rundir.Stage = "training", typical: float | None = 2.0, since: float = 0.0) -> Beat:
    return Beat(stage, since, 40, typical, 3)


def test_a_step_may_take_ten_minutes_or_five_typical_ones_or_what_the_job_says() -> None:
    assert limit_s(beat(typical=2.0), None) == 600.0
    assert limit_s(beat(typical=300.0), None) == 1500.0
    assert limit_s(beat(typical=300.0), 45) == 45


def test_other_stages_and_the_first_step_have_generous_limits_of_their_own() -> None:
    for stage in ("loading", "restoring", "compiling", "evaluating", "saving", "exporting"):
        assert limit_s(beat(stage), 45) >= 3600.0, stage
    assert limit_s(beat(typical=None), None) == limit_s(beat("compiling"), None)
    assert limit_s(beat("evaluating"), 9000) == 9000
    assert limit_s(beat("done"), 1) == float("inf")


def test_a_hang_leaves_stacks_and_a_reason_and_ends_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "STAY_S", 0.0)
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    still = beat(since=time.monotonic() - 100.0)
    dog = Watchdog(lambda: still, Directory(tmp_path), 0, 30, end=end, look_s=0.01)
    assert ended.wait(30)
    dog.stop()
    assert codes == [ExitCode.HANG]
    stacks = (tmp_path / rundir.stack_file(3, 0)).read_text()
    assert "test_a_hang_leaves_stacks" in stacks  # this thread waits here
    said = rundir.Termination.model_validate_json((tmp_path / rundir.TERMINATION).read_text())
    assert (said.exit_code, said.failure_class, said.step) == (ExitCode.HANG, "Hang", 40)
    assert "no progress for 100 s after step 40 while training (limit 30 s)" in said.message


def test_a_signal_writes_stacks_and_ends_nothing(tmp_path: Path) -> None:
    codes: list[int] = []
    dog = Watchdog(lambda: beat(since=time.monotonic()), Directory(tmp_path), 2, None, end=codes.append, look_s=0.01)
    os.kill(os.getpid(), signal.SIGUSR1)
    target = tmp_path / rundir.stack_file(3, 2)
    until = time.monotonic() + 30
    while not target.exists() and time.monotonic() < until:
        time.sleep(0.01)
    dog.stop()
    assert "test_a_signal_writes_stacks" in target.read_text()
    assert codes == []
