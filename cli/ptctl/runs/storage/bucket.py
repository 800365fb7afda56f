"""Files of a bucket, with the caller's own credentials (`gcloud auth application-default login`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ptctl.errors import CliError, InputError

_TIMEOUT_S = 60.0
_PATIENCE_S = 20.0
"""How long a request that fails is tried again."""
_HINT = "`gcloud auth application-default login` logs in; without rights there: gcloud storage cat {}"


def copy(run_uri: str, folder: Path, pattern: str, newest: int) -> None:
    """Copy the newest files, by name, of a pattern below a run directory into a folder here."""
    names = blobs(run_uri, pattern.partition("*")[0])
    for name in sorted(name for name in names if fnmatchcase(name, pattern))[-newest:]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        download(f"{run_uri}/{name}", names[name], path)


def blobs(uri: str, beginning: str = "") -> dict[str, Any]:
    """Return the objects below a URI whose names there begin so, by these names."""
    bucket, prefix = _split(uri)
    below = f"{prefix}/" if prefix else ""
    with _named(f"{uri}/{beginning}"):
        listed = _client().list_blobs(bucket, prefix=f"{below}{beginning}", timeout=_TIMEOUT_S, retry=_retry())
        return {str(blob.name).removeprefix(below): blob for blob in listed if not blob.name.endswith("/")}


def download(uri: str, blob: Any, path: Path, *, as_listed: bool = False) -> None:
    """Write an object into a file; the client checks it. as_listed: refuse one that has been replaced since."""
    generation = int(blob.generation) if as_listed else None
    with _named(uri):
        blob.download_to_filename(str(path), timeout=_TIMEOUT_S, retry=_retry(), if_generation_match=generation)


def read(uri: str) -> bytes | None:
    """Return an object's content, None if there is none."""
    with _named(uri):
        blob = _blob(uri)
        return bytes(blob.download_as_bytes()) if blob.exists(timeout=_TIMEOUT_S, retry=_retry()) else None


def write(uri: str, content: bytes, *, is_new: bool) -> None:
    """Replace an object; is_new: unless it exists."""
    from google.api_core.exceptions import PreconditionFailed

    condition = 0 if is_new else None
    with _named(uri), suppress(PreconditionFailed):
        _blob(uri).upload_from_string(content, timeout=_TIMEOUT_S, retry=_retry(), if_generation_match=condition)


def upload(uri: str, path: Path, crc32c: str) -> None:
    """Replace an object by a file, in parts. Raises CliError if the service has other bytes than the checksum's."""
    blob = _blob(uri)
    with _named(uri):
        blob.upload_from_filename(str(path), timeout=_TIMEOUT_S, retry=_retry(), checksum="crc32c")
    if blob.crc32c != crc32c:
        raise CliError(f"{uri}: the bucket has CRC32C {blob.crc32c} and not {crc32c}", "repeat the command")


def copy_object(blob: Any, uri: str) -> None:
    """Copy an object, as it was when it was listed, within the service."""
    with _named(uri):
        target, token = _blob(uri), None
        while True:
            token, _, _ = target.rewrite(
                blob, token=token, timeout=_TIMEOUT_S, retry=_retry(), if_source_generation_match=int(blob.generation)
            )
            if token is None:
                return


def remove(uri: str) -> None:
    """Delete an object."""
    with _named(uri):
        _blob(uri).delete(timeout=_TIMEOUT_S, retry=_retry())


def _blob(uri: str) -> Any:
    bucket, name = _split(uri)
    return _client().bucket(bucket).blob(name)


def names(run_uri: str, pattern: str) -> list[str]:
    """Return the files of a pattern below a run directory, relative to it and sorted."""
    bucket, prefix = _split(run_uri)
    with _named(f"{run_uri}/{pattern}"):
        start = f"{prefix}/{pattern.partition('*')[0]}".lstrip("/")
        listed = _client().list_blobs(bucket, prefix=start, timeout=_TIMEOUT_S, retry=_retry())
        relative = (str(blob.name).removeprefix(f"{prefix}/") for blob in listed)
        return sorted(name for name in relative if fnmatchcase(name, pattern))


def folders(uri: str) -> list[str]:
    """Return the names of what lies directly below a URI and holds objects itself, sorted."""
    bucket, prefix = _split(uri)
    with _named(uri):
        start = f"{prefix}/".lstrip("/")
        listed = _client().list_blobs(bucket, prefix=start, delimiter="/", timeout=_TIMEOUT_S, retry=_retry())
        for _ in listed:  # the prefixes come with the pages of objects
            pass
        return sorted(each.removeprefix(start).rstrip("/") for each in listed.prefixes)


def newer(run_uri: str, name: str, start: int) -> bytes:
    """Return a file of a run directory from a byte on; nothing if it does not exist, or ends before."""
    from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable

    bucket, prefix = _split(run_uri)
    with _named(f"{run_uri}/{name}"):
        blob = _client().bucket(bucket).blob(f"{prefix}/{name}".lstrip("/"))
        try:
            content: bytes = blob.download_as_bytes(start=start or None, timeout=_TIMEOUT_S, retry=_retry())
        except (NotFound, RequestRangeNotSatisfiable):
            return b""
        return content


def write_once(uri: str, parts: Sequence[bytes | memoryview]) -> None:
    """Write an object unless it exists."""
    with _named(uri), tempfile.TemporaryFile() as file:
        blob = _blob(uri)
        if blob.exists(timeout=_TIMEOUT_S, retry=_retry()):
            return
        file.writelines(parts)
        file.seek(0)
        blob.upload_from_file(file, timeout=_TIMEOUT_S, retry=_retry())


def _split(uri: str) -> tuple[str, str]:
    """Return the bucket and the rest of a URI. Raises InputError for what no bucket is named."""
    from ptapi.text import bucket_names

    if wrong := bucket_names.problem(uri):
        raise InputError(wrong)
    bucket, _, rest = uri.removeprefix("gs://").rstrip("/").partition("/")
    return bucket, rest


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Raise CliError with the URI and what the service, or the search for credentials, answers."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise CliError(f"{uri} cannot be reached: {error}", _HINT.format(uri)) from error


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(_PATIENCE_S)


@cache
def _client() -> Any:
    from google.cloud import storage

    return storage.Client()
