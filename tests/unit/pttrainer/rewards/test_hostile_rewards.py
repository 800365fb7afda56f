"""Rewards that cling, fork, flood and lie: each costs its own sample, for a bounded time, and leaves nothing behind."""

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.trainer.forked import is_running

from ptapi.spec import PythonReward, Reward
from pttrainer.rewards import Sample
from pttrainer.rewards.runner import Runner
from pttrainer.sandbox import captured_output, confinement, pool, user_code

SOURCE = """
import asyncio, ctypes, os, re, signal, subprocess, sys, threading, time

def to_all_files(data):
    for number in range(3, 20):
        try:
            os.write(number, data)
        except OSError:
            pass

def until_killed():
    while True:
        time.sleep(1000)

def leave(row, **how):
    left = subprocess.Popen(["sleep", "1000"], **how)
    with open(row["pids"], "a") as file:
        print(left.pid, file=file)

def hold_the_lock(now):
    while not os.path.exists(now):
        time.sleep(0.01)
    os.remove(now)
    re.match("(a+)+$", "a" * 60 + "b")

def reward(prompt, c, row):
    match c:
        case "copies itself": os.fork()
        case "exits": raise SystemExit(3)
        case "is interrupted": raise KeyboardInterrupt
        case "is cancelled": raise asyncio.CancelledError
        case "crashes": ctypes.string_at(0)
        case "closes all": os.closerange(0, 64)
        case "stops itself": os.kill(os.getpid(), signal.SIGSTOP)
        case "refuses to end": signal.signal(signal.SIGTERM, signal.SIG_IGN); until_killed()
        case "answers in part": to_all_files(b'["'); until_killed()
        case "answers nonsense": to_all_files(b'7\\n["x", {"value": 7}]\\n' + b'[' * 9999 + b'\\n')
        case "floods": to_all_files(bytes(1 << 16) * 300); until_killed()
        case "eats memory": bytearray(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 9 // 10)
        case "prints": print("printed " * 1_000_000)
        case "leaves a process": leave(row, start_new_session=True)
        case "leaves one and hangs": leave(row, start_new_session=True); leave(row); until_killed()
        case "ends the trainer": os.kill(os.getppid(), 0)
        case "ends its group": os.killpg(os.getpgid(os.getppid()), 0)
        case "ends everybody": os.kill(-1, 0)
        case "has it ended": subprocess.run(["kill", "-0", str(os.getppid())], check=True)
        case "ends a child": left = subprocess.Popen(["sleep", "1000"]); left.kill(); left.wait()
        case "goes away": os.remove(__file__); os._exit(1)
        case "holds the lock later": threading.Thread(target=hold_the_lock, args=(row["now"],)).start()
    return len(c)
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Runner]]:
    """A runner with one child: what it does for one sample is felt by the next."""
    monkeypatch.setattr(pool, "default_children", lambda: 1)
    runners = []

    def make(timeout_s: float = 5.0) -> Runner:
        path = tmp_path / "own.py"
        path.write_text(SOURCE)
        python = PythonReward(uri=f"file://{path}")
        runners.append(Runner([Reward(name="own", python=python, timeout_seconds=timeout_s)]))
        return runners[-1]

    yield make
    for runner in runners:
        runner.close()


def judged(runner: Runner, *completions: str, **row: str) -> list[float]:
    return runner.score([Sample("", completion, row) for completion in completions]).total.tolist()


def test_a_copy_that_a_reward_makes_of_its_process_answers_for_nobody(hostile: Callable[..., Runner]) -> None:
    runner = hostile()
    for _ in range(2):
        assert judged(runner, "copies itself", "a", "bc", "answers nonsense", "def") == [13, 1, 2, 16, 3]


def test_a_reward_that_ends_its_process_in_any_way_costs_its_own_sample(
    hostile: Callable[..., Runner], capfd: pytest.CaptureFixture[str]
) -> None:
    runner = hostile(timeout_s=20.0)
    assert judged(runner, "a") == [1]
    for what, says in (
        ("exits", "raised SystemExit: 3"),
        ("is interrupted", "raised KeyboardInterrupt"),
        ("is cancelled", "raised CancelledError"),
        ("eats memory", "raised MemoryError"),
        ("crashes", "its process died"),
        ("closes all", "its process died"),
        ("floods", f"its answer has more than {16 << 20} bytes"),
    ):
        np.testing.assert_array_equal(judged(runner, what, "ab"), [np.nan, 2], err_msg=what)
        assert f"1 of 2 samples have no reward; the first: {says}" in capfd.readouterr().err


@pytest.mark.skipif(bool(confinement.unsupported_reason()), reason=confinement.unsupported_reason())
def test_a_reward_can_signal_what_it_started_and_not_the_trainer(hostile: Callable[..., Runner]) -> None:
    """Signal 0 asks whether one could: where it can, this test fails and ends nobody."""
    whom = ["ends the trainer", "ends its group", "ends everybody", "has it ended", "ends a child"]
    np.testing.assert_array_equal(judged(hostile(), *whom), [np.nan] * 4 + [12])


def test_a_reward_that_cannot_be_asked_to_end_is_killed_in_time(hostile: Callable[..., Runner]) -> None:
    runner = hostile(timeout_s=2.0)
    assert judged(runner, "a") == [1]
    for what in ("stops itself", "refuses to end", "answers in part"):
        began = time.monotonic()
        assert np.isnan(judged(runner, what)).all()
        assert time.monotonic() - began < 300


def test_a_child_that_reads_no_more_makes_nobody_wait(hostile: Callable[..., Runner], tmp_path: Path) -> None:
    runner, now = hostile(timeout_s=2.0), tmp_path / "now"
    assert judged(runner, "holds the lock later", now=str(now)) == [20]
    now.touch()
    eventually(lambda: not now.exists(), 120)
    began = time.monotonic()
    assert np.isnan(judged(runner, "a", text="long" * 1_000_000)).all()
    assert time.monotonic() - began < 300
    assert judged(runner, "a") == [1]


def test_what_a_reward_starts_ends_with_it(hostile: Callable[..., Runner], tmp_path: Path) -> None:
    runner, pids = hostile(timeout_s=2.0), str(tmp_path / "pids")
    assert judged(runner, "leaves a process", pids=pids) == [16]
    assert np.isnan(judged(runner, "leaves one and hangs", pids=pids)).all()
    runner.close()
    started = [int(line) for line in Path(pids).read_text().split()]
    assert len(started) == 3
    eventually(lambda: not any(is_running(pid) for pid in started), 120)


def test_gigabytes_that_a_reward_prints_are_not_in_the_log(
    hostile: Callable[..., Runner], capfd: pytest.CaptureFixture[str]
) -> None:
    runner = hostile()
    assert judged(runner, "prints", "a") == [6, 1]
    log = capfd.readouterr().err
    assert 10_000 < len(log) < 3 * captured_output.BURST
    assert "what was printed after this is left out" in log


def test_a_line_now_and_then_always_passes_and_a_flood_is_cut_once() -> None:
    gate = captured_output.OutputLimiter()
    assert all(gate.allow(b"a line\n", 10.0 * second) == b"a line\n" for second in range(50_000))
    flood = [gate.allow(bytes(captured_output.BURST // 2), 500_000.0) for _ in range(100)]
    assert [len(piece) for piece in flood] == [captured_output.BURST // 2] * 2 + [len(captured_output.LEFT_OUT)] + [
        0
    ] * 97
    assert gate.allow(b"again", 500_000.0 + captured_output.BURST / captured_output.PER_SECOND) == b"again"


def test_a_file_that_is_gone_is_named_and_not_looked_for_once_per_sample(
    hostile: Callable[..., Runner], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runner = hostile()
    began = time.monotonic()
    assert judged(runner, "a") == [1]
    assert np.isnan(judged(runner, "goes away", *"a" * 200)).all()
    assert time.monotonic() - began < 60
    assert "201 of 201 samples have no reward" in capfd.readouterr().err
    assert np.isnan(judged(runner, "a")).all()
    assert "own.py: no such file" in capfd.readouterr().err
    (tmp_path / "own.py").write_text(SOURCE)
    assert judged(runner, "a") == [1]


def test_many_that_hang_in_a_row_end_the_step_and_not_the_run(
    hostile: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_STOPS_IN_A_ROW", 2)
    runner = hostile(timeout_s=2.0)
    assert judged(runner, "a") == [1]
    scores = judged(runner, "refuses to end", "b", *["refuses to end"] * 50, "c")
    np.testing.assert_array_equal(scores, [np.nan, 1, *[np.nan] * 51])
    assert judged(runner, "a") == [1]


@pytest.mark.parametrize("value", [np.float32(0.5), np.float16(0.5), Fraction(1, 2), 0.5])
def test_what_means_a_number_is_one(value: object) -> None:
    assert user_code.number(value) == 0.5


@pytest.mark.parametrize("value", [1e300, -(10**10), 10**400, 1j, np.bool_(True), np.array([0.5]), b"1"])
def test_what_would_overflow_or_means_something_else_is_none(value: object) -> None:
    with pytest.raises((user_code.RewardCodeError, OverflowError)):
        user_code.number(value)
