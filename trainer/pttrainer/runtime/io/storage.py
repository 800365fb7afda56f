"""Files behind URIs: `file://` directories and `gs://` buckets, behind one interface.

A URI names a place; `Place` lists the operations. Writes replace files atomically: a reader sees the old content or the
new, never half of it (a rename on disk; on gs:// every object appears atomically). `write_if` is the one write that two
machines may attempt at once: one of them succeeds. On gs:// the service guarantees it. On disk a lock does, which NFS
forwards to its server; where locks are local (Cloud Storage FUSE) the file is changed in place, and a file that another
mount has changed cannot be written. Every other write calls `fence` first. Left out: streaming. Errors say which URI
could not be read or written, and why.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlparse

from pttrainer.errors import ConfigError, DataError, NetworkError, StorageError
from pttrainer.runtime.io.outages import is_outage

LOCK_S = 5.0
"""A lock is held for one read or write: a lock held longer belongs to a stuck process."""


CALL_S = 10.0
"""Timeout of a call whose answer decides who may write: a slower call is retried, for half a minute."""


class Versioned(NamedTuple):
    """A file's content and its generation, which changes with each write; None and 0 if the file does not exist."""

    content: bytes | None
    generation: int


def no_fence() -> None:
    """Allow every write."""


class Place(Protocol):
    """A directory of files; names are relative paths with `/`.

    fence: called before each write; it does not return if this process may not write.
    """

    uri: str
    fence: Callable[[], None]

    def read(self, name: str) -> bytes | None:
        """Return the content, or None if the file does not exist."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace the file atomically."""
        ...

    def append(self, name: str, content: bytes) -> None:
        """Append to the file."""
        ...

    def remove(self, name: str) -> None:
        """Delete the file if it exists."""
        ...

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files below, sorted."""
        ...

    def upload(self, name: str, path: Path) -> None:
        """Write the file from a local one; for large files."""
        ...

    def read_versioned(self, name: str) -> Versioned:
        """Return the content and the generation that `write_if` compares."""
        ...

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        """Replace the file if it still has this generation (0: does not exist); return the new generation, or None."""
        ...


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
        """Append to the file."""
        self.fence()
        try:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with (self.path / name).open("ab") as file:
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


class Bucket:
    """`gs://`: a prefix of a Google Cloud Storage bucket. An emulator is used where STORAGE_EMULATOR_HOST names one."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.uri = f"gs://{bucket}/{prefix}".rstrip("/")
        self.prefix = prefix.strip("/")
        self.fence: Callable[[], None] = no_fence
        self._bucket = _gcs_bucket(bucket)

    def read(self, name: str) -> bytes | None:
        """Return the content, or None if the object does not exist."""
        with _service(f"{self.uri}/{name}", "read"):
            blob = self._bucket.get_blob(self._key(name))
            return None if blob is None else bytes(blob.download_as_bytes())

    def write(self, name: str, content: bytes) -> None:
        """Replace the object."""
        self.fence()
        with _service(f"{self.uri}/{name}", "written"):
            self._bucket.blob(self._key(name)).upload_from_string(content)

    def append(self, name: str, content: bytes) -> None:
        """Append to the object."""
        self.write(name, (self.read(name) or b"") + content)

    def remove(self, name: str) -> None:
        """Delete the object if it exists."""
        self.fence()
        with _service(f"{self.uri}/{name}", "removed"):
            blob = self._bucket.get_blob(self._key(name))
            if blob is not None:
                blob.delete()

    def names(self, under: str = "") -> list[str]:
        """Return the names of all objects below, sorted."""
        return sorted(self.blobs(under))

    def blobs(self, under: str = "") -> dict[str, Any]:
        """Return all objects below, by name."""
        start = len(self.prefix) + 1 if self.prefix else 0
        with _service(self.uri, "listed"):
            return {blob.name[start:]: blob for blob in self._bucket.list_blobs(prefix=self._below(under))}

    def blob(self, name: str) -> Any:
        """Return one object, or None if it does not exist."""
        with _service(f"{self.uri}/{name}", "read"):
            return self._bucket.get_blob(self._key(name))

    def upload(self, name: str, path: Path) -> None:
        """Upload a local file in parts, checked by the service."""
        self.fence()
        with _service(f"{self.uri}/{name}", "written"):
            self._bucket.blob(self._key(name)).upload_from_filename(str(path))

    def read_versioned(self, name: str) -> Versioned:
        """Return the content and its generation."""
        from google.api_core.exceptions import NotFound

        with _service(f"{self.uri}/{name}", "read"):
            blob = self._bucket.blob(self._key(name))
            try:
                content = bytes(blob.download_as_bytes(timeout=CALL_S, retry=_retry_policy()))
            except NotFound:
                return Versioned(None, 0)
            return Versioned(content, int(blob.generation))

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        """Replace the object if it still has this generation; return the new one, or None."""
        from google.api_core.exceptions import PreconditionFailed

        with _service(f"{self.uri}/{name}", "written"):
            blob = self._bucket.blob(self._key(name))
            try:
                blob.upload_from_string(content, if_generation_match=generation, timeout=CALL_S, retry=_retry_policy())
            except PreconditionFailed:
                return None
            return int(blob.generation)

    def _below(self, under: str) -> str:
        """Return the prefix of a directory's objects: `a/` rather than `a`, which would also match `a-b/c`."""
        key = self._key(under)
        return f"{key}/" if key else ""

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self.prefix, name) if part)


def _retry_policy() -> Any:
    """Return a policy of short retry intervals: a process that was cut off should soon learn what happened."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(30.0).with_delay(initial=0.5, maximum=4.0, multiplier=2.0)


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


def place(uri: str) -> Place:
    """Return the place behind a `file://` or `gs://` URI."""
    scheme, path = split(uri)
    return Directory(Path(path)) if scheme == "file" else bucket(uri)


def below(place_: Place, name: str) -> Place:
    """Return a subdirectory of a place, behind the same fence."""
    directory = place(f"{place_.uri}/{name}")
    directory.fence = place_.fence
    return directory


def bucket(uri: str) -> Bucket:
    """Return the bucket and prefix of a `gs://` URI."""
    name, _, prefix = split(uri)[1].partition("/")
    return Bucket(name, prefix)


def split(uri: str) -> tuple[str, str]:
    """Return scheme and path of a supported URI."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return "file", f"{parsed.netloc}{parsed.path}" if parsed.netloc not in ("", "localhost") else parsed.path
    if parsed.scheme == "gs":
        return "gs", f"{parsed.netloc}{parsed.path}"
    raise ConfigError(f"{uri}: {parsed.scheme}:// not supported yet; accepted: file://, gs://")


def read_file(uri: str, field: str) -> bytes:
    """Return the content of the file that the job names in `field`; raise DataError if it cannot be read."""
    directory, _, name = uri.rpartition("/")
    try:
        scheme, path = split(uri)
        if scheme == "file" and Path(path).exists() and not Path(path).is_file():
            raise DataError(f"{field}: {uri}: is not a regular file; accepted: the URI of one file")
        content = place(directory).read(name)
    except OSError as error:
        raise DataError(f"{field}: {uri}: cannot be read: {error.strerror or error}") from error
    except NetworkError:
        raise
    except StorageError as error:
        raise DataError(f"{field}: {error}") from error
    if content is None:
        raise DataError(f"{field}: {uri}: no such file; hint: the path must exist where the trainer runs")
    return content


def write_error(uri: str, error: OSError) -> StorageError:
    """Return the error for a run directory that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{uri}: no space left; hint: free space or choose another spec.output.uri, then run again")
    return StorageError(f"{uri}: cannot be written: {error.strerror or error}")


_FULL = ("No space left", "Disk quota exceeded", "File too large")
_DENIED = ("Read-only file system", "Permission denied")


def is_storage_problem(error: BaseException) -> bool:
    """Return True for a full or read-only disk, even if a library wrapped the error in its own exception."""
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
    if isinstance(error, OSError) and error.errno in numbers:
        return True
    return any(phrase in str(error) for phrase in (*_FULL, *_DENIED))


def is_service_problem(error: BaseException) -> bool:
    """Return True if a bucket is unreachable or refuses, as the checkpoint libraries report it."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, (OSError, GoogleAPIError, GoogleAuthError)):
        return True
    return type(error).__module__.startswith(("gcsfs.", "aiohttp."))


def storage_reason(error: BaseException) -> str:
    """Return the reason in a few words: libraries bury it behind the names of all files they had open."""
    return next(
        (phrase for phrase in (*_FULL, *_DENIED) if phrase in str(error)), str(error).strip().split("\n")[0][:200]
    )


@contextmanager
def _service(uri: str, done: str) -> Iterator[None]:
    """Turn Google's errors into StorageError: what could not be `done` to `uri`, and why."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.resumable_media import InvalidResponse
    from requests.exceptions import RequestException

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, InvalidResponse, RequestException) as error:
        raised = NetworkError if is_outage(error) else StorageError
        raise raised(f"{uri}: cannot be {done}: {_service_message(error)}") from error


def _service_message(error: Exception) -> str:
    """Return the service's own message, without the request and the document around it."""
    text = str(error).strip() or type(error).__name__
    match = re.search(r'"message": ?"([^"]+)"', text)
    return match[1] if match else text


def _gcs_bucket(name: str) -> Any:
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage
    except ImportError as error:
        raise ConfigError(
            "gs://: google-cloud-storage is not installed; hint: pip install 'posttrain[trainer]'"
        ) from error
    if "STORAGE_EMULATOR_HOST" in os.environ:
        from google.auth.credentials import AnonymousCredentials

        return storage.Client(credentials=AnonymousCredentials(), project="emulated").bucket(name)
    try:
        return storage.Client().bucket(name)
    except GoogleAuthError as error:
        raise ConfigError(
            f"gs://{name}: no Google credentials: {error} hint: on this machine run "
            "`gcloud auth application-default login`; on GKE give spec.serviceAccountName access to the bucket"
        ) from error
    except OSError as error:  # the client asks for a project, which a bucket does not need
        raise ConfigError(f"gs://{name}: {error}; hint: set GOOGLE_CLOUD_PROJECT") from error
