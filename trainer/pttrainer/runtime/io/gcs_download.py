"""Download objects of a bucket into a directory: in parallel, in ranges, checked, and only what changed.

A range of a file is a unit of work, so one large file keeps all threads busy. A file appears under its name only once
it is complete and its CRC32C matches the bucket's. A list beside the files records which objects they are copies of.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.runtime.io.storage import write_error

THREADS = 8
RANGE_BYTES = 16 * 2**20
SECONDS_BETWEEN_NOTES = 10.0
COPIED = ".copied.json"
"""File that records the generation of each downloaded object."""


@dataclass
class _Progress:
    """Reports how far a download is, every few seconds."""

    uri: str
    total: int
    note: Callable[[str], None]
    done: int = 0
    last: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self.lock:
            self.done += count
            if time.monotonic() - self.last >= SECONDS_BETWEEN_NOTES:
                self.last = time.monotonic()
                self.note(f"fetching {self.uri}: {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB")


def download_all(uri: str, blobs: Mapping[str, Any], directory: Path, note: Callable[[str], None]) -> None:
    """Download these objects into `directory`; skip the ones that are already there."""
    directory.mkdir(parents=True, exist_ok=True)
    copied = _copied(directory)
    wanted = {name: str(blob.generation) for name, blob in blobs.items()}
    missing = {
        name: blobs[name] for name in wanted if copied.get(name) != wanted[name] or not (directory / name).is_file()
    }
    if not missing:
        return
    total = sum(blob.size for blob in missing.values())
    note(f"fetching {uri}: {len(missing)} files, {total / 1e9:.2f} GB")
    progress = _Progress(uri, total, note)
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            for name, blob in missing.items():
                _download(f"{uri}/{name}", blob, directory / name, threads, progress)
        (directory / COPIED).write_text(json.dumps(copied | wanted))
    except OSError as error:
        raise write_error(str(directory), error) from error


def _download(uri: str, blob: Any, target: Path, threads: ThreadPoolExecutor, progress: _Progress) -> None:
    # Several processes of a machine may do this at once: each writes its own file, the last rename wins.
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.ftruncate(file, blob.size)

        def fetch(start: int) -> None:
            content = _range(uri, blob, start, min(start + RANGE_BYTES, blob.size))
            os.pwrite(file, content, start)
            progress.add(len(content))

        for _ in threads.map(fetch, range(0, blob.size, RANGE_BYTES)):
            pass
        if blob.crc32c is not None and _crc32c(_parts(file, blob.size)) != blob.crc32c:
            raise ConfigError(
                f"{uri}: is corrupt after the download: its checksum differs from the bucket's; hint: run again"
            )
        temporary.replace(target)
    finally:
        os.close(file)
        temporary.unlink(missing_ok=True)


def _range(uri: str, blob: Any, start: int, end: int) -> bytes:
    from google.api_core.exceptions import GoogleAPICallError
    from requests.exceptions import RequestException

    try:
        # The whole file is checked, so ranges are not; the generation keeps ranges of one object together.
        content = blob.download_as_bytes(
            start=start, end=end - 1, checksum=None, if_generation_match=int(blob.generation)
        )
    except (GoogleAPICallError, RequestException) as error:
        raise ConfigError(f"{uri}: cannot be read: {error}") from error
    if len(content) != end - start:
        raise ConfigError(f"{uri}: ended after {start + len(content)} of {blob.size} bytes; hint: run again")
    return bytes(content)


def _parts(file: int, size: int) -> Iterable[bytes]:
    return (os.pread(file, RANGE_BYTES, start) for start in range(0, size, RANGE_BYTES))


def _crc32c(parts: Iterable[bytes]) -> str:
    """Return the checksum as Google Cloud Storage writes it: base64 of the big-endian number."""
    import google_crc32c

    value = 0
    for part in parts:
        value = google_crc32c.extend(value, part)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def _copied(directory: Path) -> dict[str, str]:
    try:
        copied: dict[str, str] = json.loads((directory / COPIED).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return copied
