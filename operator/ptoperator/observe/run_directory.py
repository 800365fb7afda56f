"""Read documents of run directories, on `file://` and `gs://`.

A run directory that cannot be read is not the job's fault: everything here returns None instead. Google's storage
client is imported when the first `gs://` directory is read, and shared by all.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ptapi.run_directory import (
    HEARTBEATS,
    LEASE,
    PROGRESS,
    TERMINATION,
    Document,
    Heartbeat,
    Lease,
    Progress,
    Termination,
)

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20
_READERS = 16
T = TypeVar("T", bound=Document)


def read_progress(run_uri: str) -> Progress | None:
    """Return the run's progress document; None if it cannot be read."""
    return _read(run_uri, PROGRESS, Progress)


def read_termination(run_uri: str) -> Termination | None:
    """Return the trainer's report of why the last attempt ended."""
    return _read(run_uri, TERMINATION, Termination)


def read_lease(run_uri: str) -> Lease | None:
    """Return which process writes in the directory, or wrote there last."""
    return _read(run_uri, LEASE, Lease)


def read_heartbeats(run_uri: str) -> tuple[Heartbeat, ...]:
    """Return the readable heartbeats of all processes. These are many files: read them only for silent runs."""
    folder = f"{run_uri}/{HEARTBEATS}"
    try:
        names = _list_gcs(folder) if folder.startswith("gs://") else _list_files(folder)
    except Exception as error:  # as in `_read`
        logger.debug("%s cannot be listed: %s", folder, error)
        return ()
    with ThreadPoolExecutor(_READERS) as readers:
        documents = readers.map(lambda name: _read(folder, name, Heartbeat), names)
        return tuple(beat for beat in documents if beat is not None)


def _list_files(folder: str) -> list[str]:
    path = Path(folder.partition("://")[2])
    return sorted(each.name for each in path.glob("process-*.json"))


def _list_gcs(folder: str) -> list[str]:
    bucket, _, prefix = folder.removeprefix("gs://").partition("/")
    blobs = _gcs_client().list_blobs(bucket, prefix=f"{prefix}/process-", timeout=_TIMEOUT_S)
    return sorted(str(blob.name).rpartition("/")[2] for blob in blobs)


def _read(run_uri: str, name: str, kind: type[T]) -> T | None:
    uri = f"{run_uri}/{name}"
    try:
        content = _read_bytes(uri)
        return None if content is None else kind.model_validate_json(content)
    except ValidationError as error:
        logger.debug("%s is not readable: %s", uri, error)
    except Exception as error:  # the storage client's errors are many, and none of them may stop a reconcile
        logger.debug("%s cannot be read: %s", uri, error)
    return None


def _read_bytes(uri: str) -> bytes | None:
    scheme, _, path = uri.partition("://")
    if scheme == "gs":
        return _read_gcs(path)
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read_gcs(path: str) -> bytes | None:
    from google.api_core.exceptions import NotFound

    bucket, _, name = path.partition("/")
    try:
        content: bytes = _gcs_client().bucket(bucket).blob(name).download_as_bytes(timeout=_TIMEOUT_S)
    except NotFound:
        return None
    return content


@cache
def _gcs_client() -> Any:
    from google.cloud import storage

    return storage.Client()
