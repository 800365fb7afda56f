"""Locks that die with their holder, and children that are started again with growing pauses."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ptlocal.locks import Lock, file_lock, lock_holder
from ptlocal.processes import CLUSTER_MARK, with_marker
from ptlocal.supervisor.child import Child


def test_one_holder_at_a_time_and_its_pid_is_known(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    lock = Lock(path)
    assert lock.acquire()
    assert lock_holder(path) == os.getpid()
    assert not Lock(path).acquire()
    lock.release()
    assert lock_holder(path) is None
    assert Lock(path).acquire(), "a released lock can be taken again"


def test_two_who_only_ask_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    holders: list[int | None] = []
    threads = [threading.Thread(target=lambda: holders.append(lock_holder(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert holders == [None] * 8


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys, time; from pathlib import Path; from ptlocal.locks import Lock\n"
        f"assert Lock(Path({str(path)!r})).acquire(); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    assert lock_holder(path) == process.pid
    with file_lock(path, wait_s=0.0) as taken:
        assert not taken
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert lock_holder(path) is None


def child(tmp_path: Path, *program: str) -> Child:
    env = {"PATH": os.environ["PATH"], CLUSTER_MARK: str(tmp_path)}
    return Child("test", list(program), env, tmp_path / "logs" / "test.log")


def test_a_dead_child_is_reported_once_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    died = threading.Event()
    one = child(tmp_path, "sh", "-c", "echo first; echo last; exit 7")
    one.start(lambda _: died.set())
    assert died.wait(60)
    assert (one.is_alive, one.exit_code, one.last_log_lines(1)) == (False, 7, "last")


def test_pauses_between_restarts_grow() -> None:
    one = Child("test", ["true"], {}, Path("unused.log"))
    one._started = float("inf")  # it never lives long enough to count as steady
    assert [one.next_restart_delay_s() for _ in range(7)] == [0.2, 1, 2, 5, 10, 30, 30]


def test_stopping_a_child_ends_it_and_is_not_reported_as_a_death(tmp_path: Path) -> None:
    deaths: list[Child] = []
    one = child(tmp_path, "sh", "-c", "trap '' TERM; sleep 100 & wait; wait")
    one.start(deaths.append)
    one.stop(grace_s=0.2)
    assert not one.is_alive
    assert deaths == []
    assert with_marker(CLUSTER_MARK, str(tmp_path)) == []
