"""Download objects of a bucket into a directory with Google's transfer manager: checked, and only what changed.

The ranges of a file are fetched in parallel and written where they belong. A file appears under its name only once it
is complete and its CRC32C matches the bucket's. A list beside the files records which objects they are copies of.
"""

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from pttrainer.errors import ConfigError, NetworkError
from pttrainer.runtime.io.outages import is_outage
from pttrainer.runtime.io.storage_errors import write_error

THREADS = 8
RANGE_BYTES = 16 * 2**20
COPIED = ".copied.json"
"""File that records the generation of each downloaded object."""
UNFINISHED = ".unfinished"
"""File that a download writes; a killed one leaves it, and the next overwrites it."""


def download_all(uri: str, blobs: Mapping[str, Any], directory: Path, note: Callable[[str], None]) -> None:
    """Download these objects into `directory`; skip the ones that are already there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / COPIED).open("a+") as record:
            fcntl.flock(record, fcntl.LOCK_EX)  # a machine's processes share the directory: one fetches, the rest wait
            _download_missing(uri, blobs, directory, record, note)
    except OSError as error:
        raise write_error(str(directory), error) from error


def _download_missing(
    uri: str, blobs: Mapping[str, Any], directory: Path, record: IO[str], note: Callable[[str], None]
) -> None:
    copied = _copied(record)
    missing = {
        name: blob
        for name, blob in blobs.items()
        if copied.get(name) != str(blob.generation) or not (directory / name).is_file()
    }
    total, done = sum(blob.size for blob in missing.values()), 0
    if missing:
        note(f"fetching {uri}: {len(missing)} files, {total / 1e9:.2f} GB")
    for name, blob in missing.items():
        _download(f"{uri}/{name}", blob, directory / UNFINISHED, directory / name)
        copied[name] = str(blob.generation)
        record.truncate(0)
        record.write(json.dumps(copied))
        record.flush()
        done += blob.size
        note(f"fetched {name}: {done / 1e9:.2f} of {total / 1e9:.2f} GB")


def _download(uri: str, blob: Any, unfinished: Path, target: Path) -> None:
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage import transfer_manager
    from google.cloud.storage.exceptions import DataCorruption
    from requests.exceptions import RequestException

    try:
        transfer_manager.download_chunks_concurrently(
            blob,
            str(unfinished),
            RANGE_BYTES,
            {"if_generation_match": int(blob.generation)},  # all ranges are of one version of the object
            worker_type=transfer_manager.THREAD,  # a fork of a process that runs JAX may hang
            max_workers=THREADS,
        )
        unfinished.replace(target)
    except DataCorruption as error:
        raise ConfigError(
            f"{uri}: is corrupt after the download: its checksum differs from the bucket's; hint: run again"
        ) from error
    except (GoogleAPICallError, GoogleAuthError, RequestException) as error:
        raised = NetworkError if is_outage(error) else ConfigError
        raise raised(f"{uri}: cannot be read: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _copied(record: IO[str]) -> dict[str, str]:
    record.seek(0)
    try:
        copied: dict[str, str] = json.load(record)
    except ValueError:
        return {}
    return copied
