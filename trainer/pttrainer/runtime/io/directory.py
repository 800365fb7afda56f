"""`file://`: files of a local directory, replaced by a rename.

Where two machines may write at once a lock decides, which NFS forwards to its server; where locks are local (Cloud
Storage FUSE) the file is changed in place, and a file that another mount has changed cannot be written.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pttrainer.errors import StorageError
from pttrainer.runtime.io.place import Versioned, no_fence
from pttrainer.runtime.io.storage_errors import write_error

LOCK_S = 5.0
"""A lock is held for one read or write: a lock held longer belongs to a stuck process."""


class Directory:
    """`file://`: a local directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"file://{path}"
        self.fence: Callable[[], None] = no_fence

    def read(self, name: str) -> bytes | None:
        """Return the content, or None if the file does not exist."""
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace the file atomically."""
        self._replace(name, lambda temporary: temporary.write_bytes(content))

    def append(self, name: str, content: bytes) -> None:
        """Append to the file.

        Opened first: a process that is stopped behind the check writes to a file that its successor has replaced.
        """
        try:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with (self.path / name).open("ab") as file:
                self.fence()
                file.write(content)
        except OSError as error:
            raise write_error(f"{self.uri}/{name}", error) from error

    def remove(self, name: str) -> None:
        """Delete the file if it exists."""
        self.fence()
        (self.path / name).unlink(missing_ok=True)

    def upload(self, name: str, path: Path) -> None:
        """Write the file from a local one."""
        self._replace(name, lambda temporary: shutil.copyfile(path, temporary))

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files below, sorted."""
        paths = (self.path / under).rglob("*")
        return sorted(str(p.relative_to(self.path)) for p in paths if p.is_file())

    def read_versioned(self, name: str) -> Versioned:
        """Return the content and its generation."""
        try:
            with (self.path / name).open("rb") as file:
                _lock(file.fileno(), fcntl.LOCK_SH)
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            content = b""
        except OSError as error:
            raise StorageError(f"{self.uri}/{name}: cannot be read: {error.strerror or error}") from error
        return Versioned(content or None, _generation(content))

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        """Replace the file if it still has this generation; return the new one, or None."""
        target = self.path / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(target, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
                if not _lock(file.fileno(), fcntl.LOCK_EX) or _generation(file.read()) != generation:
                    return None
                if not os.path.samestat(os.fstat(file.fileno()), target.stat()):
                    return None  # removed or replaced while we waited for the lock
                file.seek(0)
                file.write(content)
                file.truncate()
        except OSError as error:
            if error.errno == errno.ESTALE:  # another mount changed it
                return None
            raise write_error(f"{self.uri}/{name}", error) from error
        return _generation(content)

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        self.fence()
        target = self.path / name
        # One writer per run directory, so the process id makes the temporary name unique.
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            temporary.replace(target)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise write_error(f"{self.uri}/{name}", error) from error


def _generation(content: bytes) -> int:
    """Return the generation of a file on disk: a hash of its content, which no two writes share."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8]) if content else 0


def _lock(descriptor: int, kind: int) -> bool:
    """Wait for a lock on an open file; return True if this process has it.

    A filesystem without locks has nothing to wait for.
    """
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                return True
            raise
