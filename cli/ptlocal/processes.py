"""Local processes that must not outlive their owner: start, identify after a crash, kill with all descendants.

Every process carries a marker variable in its environment, which its children inherit, so that even one that left its
session can be identified. A pid alone identifies nothing after a restart; pid and start time together do.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from ptlocal import exec_shim

CLUSTER_MARK = "POSTTRAIN_LOCAL_CLUSTER"
POD_MARK = "POSTTRAIN_LOCAL_POD"

_KILL_WAIT_S = 5.0


def start(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, output: IO[bytes], error_file: Path
) -> subprocess.Popen[bytes]:
    """Start the process in its own session. The calling thread must outlive it, or it dies (Linux)."""
    error_file.unlink(missing_ok=True)
    launcher = [sys.executable, "-I", "-S", exec_shim.__file__, str(os.getpid()), str(error_file)]
    return subprocess.Popen(
        [*launcher, *argv],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def signal_group(pid: int, number: int) -> None:
    """Signal the whole process group of a container that has not been reaped yet."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        os.kill(pid, number)  # the group holds a process that changed its user


def start_time(pid: int) -> float | None:
    """Return when the process started, in seconds since the epoch; None if it does not exist."""
    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def with_marker(name: str, value: str) -> list[psutil.Process]:
    """Return the processes whose environment has `name=value`, except this one."""
    own_id = os.getpid()
    return [p for p in _own_processes() if p.pid != own_id and _environment(p).get(name) == value]


def in_session(leader: int, since: float) -> list[psutil.Process]:
    """Return the processes of the session that `leader` opened at `since`, whether it lives or not."""
    return [p for p in _own_processes() if _session(p.pid) == leader and _started_after(p, since)]


def memory(matches: Iterable[psutil.Process]) -> int:
    """Return the bytes that processes hold for themselves; what they share (libraries, mapped files) is not counted."""
    return sum(_own_memory(process) for process in matches)


def _own_memory(process: psutil.Process) -> int:
    try:
        info = process.memory_info()
    except psutil.Error:
        return 0
    return int(info.rss - getattr(info, "shared", 0))


def kill_all(find: Callable[[], list[psutil.Process]]) -> int:
    """SIGKILL what `find` returns until it returns nothing; return the number of killed processes."""
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_WAIT_S
    while matches := find():
        for process in matches:
            killed.add(process.pid)
            _send(process, signal.SIGKILL)
        psutil.wait_procs(matches, timeout=0.5)
        if time.monotonic() > deadline:
            break
    return len(killed)


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


def _own_processes() -> list[psutil.Process]:
    """Return this user's processes but zombies, which are dead and only wait for their parent."""
    own_id = os.getuid()
    own = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == own_id and process.status() != psutil.STATUS_ZOMBIE:
                own.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return own


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _started_after(process: psutil.Process, since: float) -> bool:
    try:
        return bool(process.create_time() >= since - 0.05)  # the clock ticks a hundred times a second
    except psutil.Error:
        return False
