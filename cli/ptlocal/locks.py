"""File locks that the kernel releases when the holder dies, which a pid file cannot guarantee."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RETRY_S = 0.02


class Lock:
    """An exclusive lock on a file, which contains the pid of its holder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self, wait_s: float = 0.0) -> bool:
        """Acquire the lock within `wait_s`; return True on success."""
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
        """Release the lock, if it is held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def lock_holder(path: Path) -> int | None:
    """Return the pid of the process that holds the lock, or None."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # shared, so that two callers of this function do not take each other for the holder
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode().strip()
        return int(text) if text else None
    else:
        return None
    finally:
        os.close(fd)


@contextmanager
def file_lock(path: Path, wait_s: float) -> Iterator[bool]:
    """Hold the lock in a with statement; yields False if it was not acquired within `wait_s`."""
    lock = Lock(path)
    acquired = lock.acquire(wait_s)
    try:
        yield acquired
    finally:
        lock.release()
