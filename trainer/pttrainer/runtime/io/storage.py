"""Files behind URIs: `file://` directories and `gs://` buckets, read and written alike.

A URI names a place; `Place` is what can be done there. Writes are whole files and atomic: a reader sees the
old content or the new, never half of it (a rename on disk; on gs:// an object appears whole by nature).
`write_if` is the one write that two machines may try at once: one of them succeeds. On gs:// the service sees to it. On
a disk a lock does, which NFS takes to its server; where locks are local (Cloud Storage FUSE) the file is changed in
place, and a file that another mount has changed cannot be written. Every other write asks `fence` first.
Left out: anything that streams. Errors say which URI could not be read or written, and why.
"""

from __future__ import annotations

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

from pttrainer.errors import ConfigError, DataError, StorageError

LOCK_S = 5.0
"""A lock is held for the time of a read or write: one that lasts longer is that of a process that stands still."""


CALL_S = 10.0
"""Of a call whose answer says who may write: one that lasts longer is made anew, for half a minute."""


class Versioned(NamedTuple):
    """A file's content and its generation, which is another one after each write; None and 0 where there is no file."""

    content: bytes | None
    generation: int


def no_fence() -> None:
    """Every write may go on."""


class Place(Protocol):
    """A directory of files; names are relative paths with `/`. fence: asked before each write; whoever may not write
    does not return from it."""

    uri: str
    fence: Callable[[], None]

    def read(self, name: str) -> bytes | None:
        """The content, or None where there is no such file."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replaces the file atomically."""
        ...

    def append(self, name: str, content: bytes) -> None:
        """Adds to the end of the file."""
        ...

    def remove(self, name: str) -> None:
        """Deletes the file if it is there."""
        ...

    def names(self, under: str = "") -> list[str]:
        """All files below, sorted."""
        ...

    def upload(self, name: str, path: Path) -> None:
        """As `write`, from a file; for large ones."""
        ...

    def read_versioned(self, name: str) -> Versioned:
        """The content, and what `write_if` compares."""
        ...

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        """Replaces the file if it is still of this generation (0: if there is none); the new generation, or None."""
        ...


class Directory:
    """`file://`: a directory of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"file://{path}"
        self.fence: Callable[[], None] = no_fence

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        self.fence()
        target = self.path / name
        # One writer per run directory, so the process id makes the temporary name unique.
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(target)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise write_error(f"{self.uri}/{name}", error) from error

    def append(self, name: str, content: bytes) -> None:
        self.fence()
        try:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with (self.path / name).open("ab") as file:
                file.write(content)
        except OSError as error:
            raise write_error(f"{self.uri}/{name}", error) from error

    def remove(self, name: str) -> None:
        self.fence()
        (self.path / name).unlink(missing_ok=True)

    def upload(self, name: str, path: Path) -> None:
        self.fence()
        try:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            temporary = (self.path / name).with_name(f".{Path(name).name}.{os.getpid()}")
            shutil.copyfile(path, temporary)
            temporary.replace(self.path / name)
        except OSError as error:
            raise write_error(f"{self.uri}/{name}", error) from error

    def names(self, under: str = "") -> list[str]:
        found = (self.path / under).rglob("*")
        return sorted(str(p.relative_to(self.path)) for p in found if p.is_file())

    def read_versioned(self, name: str) -> Versioned:
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


class Bucket:
    """`gs://`: a prefix of a Google Cloud Storage bucket. An emulator is used where STORAGE_EMULATOR_HOST names one."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.uri = f"gs://{bucket}/{prefix}".rstrip("/")
        self.prefix = prefix.strip("/")
        self.fence: Callable[[], None] = no_fence
        self._bucket = _gcs_bucket(bucket)

    def read(self, name: str) -> bytes | None:
        with _service(f"{self.uri}/{name}", "read"):
            blob = self._bucket.get_blob(self._key(name))
            return None if blob is None else bytes(blob.download_as_bytes())

    def write(self, name: str, content: bytes) -> None:
        self.fence()
        with _service(f"{self.uri}/{name}", "written"):
            self._bucket.blob(self._key(name)).upload_from_string(content)

    def append(self, name: str, content: bytes) -> None:
        self.write(name, (self.read(name) or b"") + content)

    def remove(self, name: str) -> None:
        self.fence()
        with _service(f"{self.uri}/{name}", "removed"):
            blob = self._bucket.get_blob(self._key(name))
            if blob is not None:
                blob.delete()

    def names(self, under: str = "") -> list[str]:
        start = len(self.prefix) + 1 if self.prefix else 0
        with _service(self.uri, "listed"):
            return sorted(blob.name[start:] for blob in self._bucket.list_blobs(prefix=self._below(under)))

    def blobs(self) -> dict[str, Any]:
        """All objects below, by name."""
        start = len(self.prefix) + 1 if self.prefix else 0
        with _service(self.uri, "listed"):
            return {blob.name[start:]: blob for blob in self._bucket.list_blobs(prefix=self._below(""))}

    def blob(self, name: str) -> Any:
        """One object, or None where there is none."""
        with _service(f"{self.uri}/{name}", "read"):
            return self._bucket.get_blob(self._key(name))

    def upload(self, name: str, path: Path) -> None:
        """Copies a file into the bucket, in pieces, checked by the service."""
        self.fence()
        with _service(f"{self.uri}/{name}", "written"):
            self._bucket.blob(self._key(name)).upload_from_filename(str(path))

    def read_versioned(self, name: str) -> Versioned:
        from google.api_core.exceptions import NotFound

        with _service(f"{self.uri}/{name}", "read"):
            blob = self._bucket.blob(self._key(name))
            try:
                content = bytes(blob.download_as_bytes(timeout=CALL_S, retry=_soon()))
            except NotFound:
                return Versioned(None, 0)
            return Versioned(content, int(blob.generation))

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        from google.api_core.exceptions import PreconditionFailed

        with _service(f"{self.uri}/{name}", "written"):
            blob = self._bucket.blob(self._key(name))
            try:
                blob.upload_from_string(content, if_generation_match=generation, timeout=CALL_S, retry=_soon())
            except PreconditionFailed:
                return None
            return int(blob.generation)

    def _below(self, under: str) -> str:
        """The prefix of what is in a directory: `a/` and not `a`, which `a-b/c` has too."""
        key = self._key(under)
        return f"{key}/" if key else ""

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self.prefix, name) if part)


def _soon() -> Any:
    """How often to try: a process that was cut off should soon know what happened meanwhile."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(30.0).with_delay(initial=0.5, maximum=4.0, multiplier=2.0)


def _generation(content: bytes) -> int:
    """Of a file on a disk: follows from its content, which no two writes have in common."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8]) if content else 0


def _lock(descriptor: int, kind: int) -> bool:
    """Waits for a lock on an open file; whether it is ours. A filesystem without locks has nothing to wait for."""
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
    """What can be done at a `file://` or `gs://` URI."""
    scheme, path = split(uri)
    return Directory(Path(path)) if scheme == "file" else bucket(uri)


def below(place_: Place, name: str) -> Place:
    """A directory of a place, behind the same fence."""
    found = place(f"{place_.uri}/{name}")
    found.fence = place_.fence
    return found


def bucket(uri: str) -> Bucket:
    """The bucket and prefix of a `gs://` URI."""
    name, _, prefix = split(uri)[1].partition("/")
    return Bucket(name, prefix)


def split(uri: str) -> tuple[str, str]:
    """Scheme and path of a URI that can be read here."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return "file", f"{parsed.netloc}{parsed.path}" if parsed.netloc not in ("", "localhost") else parsed.path
    if parsed.scheme == "gs":
        return "gs", f"{parsed.netloc}{parsed.path}"
    raise ConfigError(f"{uri}: {parsed.scheme}:// not supported yet; accepted: file://, gs://")


def read_file(uri: str, field: str) -> bytes:
    """The content of one file that the job names in `field`; raises DataError where it cannot be read."""
    directory, _, name = uri.rpartition("/")
    try:
        if split(uri)[0] == "file" and Path(split(uri)[1]).is_dir():
            raise DataError(f"{field}: {uri}: is a directory; accepted: the URI of one file")
        content = place(directory).read(name)
    except OSError as error:
        raise DataError(f"{field}: {uri}: cannot be read: {error.strerror or error}") from error
    except StorageError as error:
        raise DataError(f"{field}: {error}") from error
    if content is None:
        raise DataError(f"{field}: {uri}: no such file; hint: the path must exist where the trainer runs")
    return content


def write_error(uri: str, error: OSError) -> StorageError:
    """What to tell the user when the run directory cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{uri}: no space left; hint: free space or choose another spec.output.uri, then run again")
    return StorageError(f"{uri}: cannot be written: {error.strerror or error}")


_FULL = ("No space left", "Disk quota exceeded", "File too large")
_DENIED = ("Read-only file system", "Permission denied")


def is_storage_problem(error: BaseException) -> bool:
    """True for a full or forbidden disk, also where a library wrapped it in an exception of its own."""
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
    if isinstance(error, OSError) and error.errno in numbers:
        return True
    return any(words in str(error) for words in (*_FULL, *_DENIED))


def is_service_problem(error: BaseException) -> bool:
    """True for a bucket that cannot be reached or refuses, as the libraries that write checkpoints there say it."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, (OSError, GoogleAPIError, GoogleAuthError)):
        return True
    return type(error).__module__.startswith(("gcsfs.", "aiohttp."))


def storage_reason(error: BaseException) -> str:
    """The reason in a few words: libraries bury it behind the name of every file they had open."""
    return next((words for words in (*_FULL, *_DENIED) if words in str(error)), str(error).strip().split("\n")[0][:200])


@contextmanager
def _service(uri: str, done: str) -> Iterator[None]:
    """Google's errors as StorageError: what could not be `done` to `uri`, and why."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.resumable_media import InvalidResponse
    from requests.exceptions import RequestException

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, InvalidResponse, RequestException) as error:
        raise StorageError(f"{uri}: cannot be {done}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """The service's own words, out of the request and the document that they came in."""
    text = str(error).strip() or type(error).__name__
    found = re.search(r'"message": ?"([^"]+)"', text)
    return found[1] if found else text


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
