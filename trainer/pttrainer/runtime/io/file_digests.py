"""Digests of files on this machine: whole, or of samples where whole would take minutes.

A file that was hashed is not hashed again while it stays as it is, so whoever needs its digest may ask.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

WHOLE_BYTES = 16 * 2**20
"""Files up to this size are read whole."""
SAMPLES, SAMPLE_BYTES = 256, 2**14


def sha256(path: Path) -> str:
    """Of the whole content; raises OSError."""
    return _sha256(path, *_version(path))


def weights(path: Path) -> str:
    """Of a file that may take many gigabytes: of all of it where it is small, else of its size and many pieces all over
    it, which other weights of the same shapes do not share. Raises OSError."""
    if path.stat().st_size <= WHOLE_BYTES:
        return f"sha256:{sha256(path)}"
    return f"sampled:{_sampled(path, *_version(path))}"


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=65536)
def _sha256(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=4096)
def _sampled(path: Path, size: int, modified: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for piece in range(SAMPLES):
            file.seek((size - SAMPLE_BYTES) * piece // (SAMPLES - 1))  # the first is the head, with names and shapes
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
