"""Digests of local files: of the full content, or of samples where reading all of it would take minutes.

The digest of an unchanged file is cached, so callers may ask for it repeatedly.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

WHOLE_BYTES = 16 * 2**20
"""Files up to this size are read completely."""
SAMPLES, SAMPLE_BYTES = 256, 2**14


def sha256(path: Path) -> str:
    """Return the SHA-256 of the full content; raise OSError if the file cannot be read."""
    return _sha256(path, *_version(path))


def weights(path: Path) -> str:
    """Return a digest of a file that may hold many gigabytes; raise OSError if it cannot be read.

    A small file is read completely, a large one by its size and many samples: other weights of the same shapes
    differ in them.
    """
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
