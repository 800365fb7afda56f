"""The files of a result, with the digest of each, and how one is fetched: from a directory, a bucket or a claim.

A result is complete if its config is there, which the trainer writes last.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptctl.errors import CliError
from ptctl.runs.storage import bucket, claim
from ptkube import pod_exec

if TYPE_CHECKING:
    from ptctl.jobs.view import JobView
    from ptkube.client import Kube

ADAPTER_CONFIG, MODEL_CONFIG = "adapter_config.json", "config.json"
CONFIGS = (ADAPTER_CONFIG, MODEL_CONFIG)
_BLOCK_BYTES = 2**22
_LIST = 'cd "$1" 2>/dev/null || exit 0; find . -type f -exec sha256sum {} +'


@dataclass(frozen=True)
class Source:
    """A result. `digests`: `crc32c:…` or `sha256:…` of each file, in the order in which they are copied."""

    digests: Mapping[str, str]
    fetch: Callable[[str, Path], None]
    """(name, path): write the file there."""
    folder: Path | None = None
    """Where the files are on this machine, if they are."""
    blobs: Mapping[str, Any] = field(default_factory=dict)
    """The files as objects of a bucket, if they are in one."""

    @property
    def is_complete(self) -> bool:
        """Return True if the trainer has finished writing it."""
        return any(name in self.digests for name in CONFIGS)


def in_folder(folder: Path) -> Source:
    """Return the result that a directory holds."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    digests = {name: digest(folder / name, "crc32c") for name in config_last(names)}
    return Source(digests, lambda name, path: _copy(folder / name, path), folder)


def in_bucket(uri: str) -> Source:
    """Return the result below a gs:// URI."""
    blobs = bucket.blobs(uri)
    digests = {name: f"crc32c:{blobs[name].crc32c}" for name in config_last(blobs)}
    return Source(
        digests, lambda name, path: bucket.download(f"{uri}/{name}", blobs[name], path, as_listed=True), blobs=blobs
    )


@contextmanager
def on_claim(kube: Kube, job: JobView, directory: str) -> Iterator[Source]:
    """Give the result that a directory on a claim holds, read by a pod that mounts it."""
    with claim.mounted(kube, job) as container:
        listing = b"".join(pod_exec.output(kube, container, ["/bin/sh", "-c", _LIST, "sh", directory])).decode()
        hashes = {name: sha256 for sha256, name in (line.split("  ./", 1) for line in listing.splitlines())}

        def fetch(name: str, path: Path) -> None:
            with path.open("wb") as file:
                file.writelines(pod_exec.output(kube, container, ["cat", f"{directory}/{name}"]))

        yield Source({name: f"sha256:{hashes[name]}" for name in config_last(hashes)}, fetch)


def config_last(names: Mapping[str, Any] | list[str]) -> list[str]:
    """Return the names sorted, configs last: a reader that finds a config finds everything."""
    return sorted(names, key=lambda name: (name in CONFIGS, name))


def digest(path: Path, kind: str) -> str:
    """Return `crc32c:…` (in base64, as buckets write it) or `sha256:…` of a file."""
    with path.open("rb") as file:
        if kind == "sha256":
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        import google_crc32c

        checksum = 0
        while block := file.read(_BLOCK_BYTES):
            checksum = google_crc32c.extend(checksum, block)
        return f"crc32c:{base64.b64encode(checksum.to_bytes(4, 'big')).decode()}"


def check(path: Path, expected: str, name: str) -> None:
    """Raise CliError unless the file has this digest."""
    kind = expected.partition(":")[0]
    actual = digest(path, kind)
    if actual != expected:
        raise CliError(
            f"{name}: its copy has {actual} and not {expected}",
            "did the run write it again meanwhile? repeat the command",
        )


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
