"""File locks that the kernel gives back when their holder dies, which no pid file can promise."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RETRY_S = 0.02


class Lock:
    """An exclusive lock on a file; the holder's pid stands in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self, wait_s: float = 0.0) -> bool:
        deadline = time.monotonic() + wait_s
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return False
                time.sleep(_RETRY_S)
                continue
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            self._fd = fd
            return True

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def holder(path: Path) -> int | None:
    """The pid of the live holder; None if nobody holds the lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # shared, so that two who only ask do not see each other as holders
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode().strip()
        return int(text) if text else None
    else:
        return None
    finally:
        os.close(fd)


@contextmanager
def held(path: Path, wait_s: float) -> Iterator[bool]:
    lock = Lock(path)
    taken = lock.take(wait_s)
    try:
        yield taken
    finally:
        lock.release()
