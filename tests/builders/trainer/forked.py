"""Programs of ours in processes of their own that need not import everything again.

`python -m pttrainer` spends two CPU-seconds on imports, and tests start hundreds. Here one process for each set of
modules imports them, keeps no thread and no device, and forks: a fork has arguments, environment, directory and
streams as a new process would, is killed as one, and ends as one, the interpreter's shutdown included. What forks do
not show is how a program begins, and hashes that differ from process to process: tests of that start `python -m`
themselves.

This file is both sides: a test asks `start`; run as a program (`forked.py FD MODULE …`) it is the process that forks.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TextIO

_LENGTH = struct.Struct("!I")


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Process:
    """What tests use of `subprocess.Popen`. stdout, stderr: None where the caller gave a file."""

    def __init__(self, pid: int, ended: socket.socket, stdout: TextIO | None, stderr: TextIO | None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._ended, self._telling = ended, threading.Lock()

    def poll(self) -> int | None:
        """The exit code, a signal's number less than zero, or None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """As `poll`, at the end; raises TimeoutExpired."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that was not read of both streams, after the end; raises TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        texts = ["", ""]

        def read(index: int, stream: TextIO) -> None:
            with stream:
                texts[index] = stream.read()

        streams = [(i, stream) for i, stream in enumerate((self.stdout, self.stderr)) if stream and not stream.closed]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(None if end is None else max(end - time.monotonic(), 1.0))
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and what forked it has not said so yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            with self._telling:
                if self.returncode is None:
                    status = self._ended.recv(16)
                    self.returncode = int(status) if status else -signal.SIGKILL  # nothing: what forked it was killed
        return self.returncode


def start(
    imported: tuple[str, ...],
    words: tuple[str, ...],
    env: Mapping[str, str],
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> Process:
    """`python -m WORDS` in this directory, forked from a process that has imported these modules; as in Popen, stderr
    may be STDOUT. Streams are text."""
    out, own_out = os.pipe() if stdout == subprocess.PIPE else (None, os.dup(stdout))
    if stderr == subprocess.PIPE:
        err, own_err = os.pipe()
    else:
        err, own_err = None, os.dup(own_out if stderr == subprocess.STDOUT else stderr)
    ended, tells_end = socket.socketpair()
    request = json.dumps({"words": words, "env": dict(env), "directory": os.getcwd()}).encode()
    given = [own_out, own_err, tells_end.fileno()]
    parent = _parent(imported)
    socket.send_fds(parent, [_LENGTH.pack(len(request))], given)
    parent.sendall(request)
    os.close(own_out)
    os.close(own_err)
    tells_end.close()
    (pid,) = _LENGTH.unpack(_exactly(ended, _LENGTH.size))
    return Process(pid, ended, *(None if fd is None else os.fdopen(fd) for fd in (out, err)))


@lru_cache
def _parent(imported: tuple[str, ...]) -> socket.socket:
    """The process that forks, for as long as this one lives."""
    ours, its = socket.socketpair()
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
    # A fork of threads is none: numpy's BLAS would start some.
    environment = {**clean, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(its.fileno()), *imported]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])
    its.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        more = connection.recv(count - len(content))
        if not more:
            raise EOFError("the other side has ended")
        content += more
    return content


def _serve(requests: socket.socket) -> list[str]:
    """Forks for each request until the tests have ended. Returns in a fork, with its words."""
    running: dict[int, socket.socket] = {}
    ends, on_end = os.pipe()
    os.set_blocking(on_end, False)
    signal.set_wakeup_fd(on_end)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too; the tests end it
    while True:
        ready, _, _ = select.select([requests.fileno(), ends], [], [])
        if ends in ready:
            os.read(ends, 512)
            _tell_ends(running)
        if requests.fileno() not in ready:
            continue
        head, given, _, _ = socket.recv_fds(requests, _LENGTH.size, 3)
        if not head:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            sys.exit(0)
        request = json.loads(_exactly(requests, _LENGTH.unpack(head)[0]))
        pid = os.fork()
        if pid == 0:
            for other in (requests, *running.values()):
                other.close()
            signal.set_wakeup_fd(-1)
            for fd in (ends, on_end, given[2]):
                os.close(fd)
            _become(request, *given[:2])
            return list(request["words"])
        running[pid] = socket.socket(fileno=given[2])
        running[pid].sendall(_LENGTH.pack(pid))
        os.close(given[0])
        os.close(given[1])


def _tell_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as ended:
            ended.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, object], out: int, err: int) -> None:
    """What a new process would find."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, stream in ((out, 1), (err, 2)):
        os.dup2(fd, stream)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    # A trainer would start itself again (`large_pages`), by a command line that is this server's.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    os.chdir(str(request["directory"]))


def _main(fd: int, modules: list[str]) -> None:
    sys.path[0] = os.getcwd()  # as `python -m` has it
    for module in modules:
        __import__(module)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as in the tests themselves
    sys.argv = _serve(socket.socket(fileno=fd))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
