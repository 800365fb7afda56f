"""Where a result goes: a directory or a bucket, file by file, each checked. The hub is in `hub.py`.

`posttrain-export.json` is written first: whose copy this is, with the digests. So a later command goes on with its own
copy, and nothing that somebody else put there is written over.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ptctl.errors import InputError
from ptctl.runs.export import source as sources
from ptctl.runs.export.source import Source
from ptctl.runs.storage import bucket

RECORD = "posttrain-export.json"
_PART = ".part"
_MODEL_FILES = (".safetensors", ".safetensors.index.json", *sources.CONFIGS)
Note = Callable[[str], None]


@dataclass(frozen=True)
class Claim:
    """What makes a place that of one export. stale: files of an earlier model there, to be removed first."""

    record: bytes
    stale: Sequence[str] = ()
    replaces: bool = False


class Destination(Protocol):
    """A place for a result. `uri` is how the user names it."""

    uri: str

    def names(self) -> list[str]:
        """Return the names of all files that are there."""
        ...

    def record(self) -> bytes | None:
        """Return the record of the copy that is there."""
        ...

    def write(self, source: Source, claim: Claim, note: Note) -> None:
        """Copy what is missing. Raises InputError if another export has come meanwhile."""
        ...


def claimed(place: Destination, record: bytes, *, overwrite: bool) -> Claim:
    """Return the claim on a place. Raises InputError if something else than this export is there."""
    names = [name for name in place.names() if name not in (RECORD, ".gitattributes")]
    earlier = place.record()
    if earlier == record or not (names or earlier):
        return Claim(record)
    if not overwrite:
        job = _job(earlier)
        holds = f"another export, of job {job!r}" if job or not names else f"{len(names)} files, such as {names[0]}"
        raise InputError(
            f"{place.uri}: holds {holds}; accepted: an empty place, or an unfinished export of the same result",
            "--overwrite replaces the model that is there",
        )
    return Claim(record, [name for name in names if "/" not in name and name.endswith(_MODEL_FILES)], replaces=True)


def taken(uri: str) -> InputError:
    """Return the error of a place that another export has taken since it was looked at."""
    return InputError(f"{uri}: another export has just begun here", "export one of them to another place")


def _job(record: bytes | None) -> str:
    try:
        return str(json.loads(record or b"")["job"])
    except (ValueError, KeyError, TypeError):
        return ""


class Folder:
    """A directory on this machine. A file appears under its name once it is whole and checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)
        if path.exists() and not path.is_dir():
            raise InputError(f"{path}: a file; accepted: a directory, gs://BUCKET/PATH or hf://ORGANISATION/NAME")

    def names(self) -> list[str]:
        """Return the names of all files but unfinished ones."""
        files = (path for path in self.path.rglob("*") if path.is_file() and not path.name.endswith(_PART))
        return sorted(str(path.relative_to(self.path)) for path in files)

    def record(self) -> bytes | None:
        """Return the record, None if there is none."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self.path / RECORD).read_bytes()
        return None

    def write(self, source: Source, claim: Claim, note: Note) -> None:
        """Copy file by file."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in claim.stale:
            (self.path / name).unlink()
        self._place(RECORD, lambda part: part.write_bytes(claim.record), is_new=not claim.replaces)
        if self.record() != claim.record:
            raise taken(self.uri)
        for name, expected in source.digests.items():
            target = self.path / name
            if target.is_file() and sources.digest(target, expected.partition(":")[0]) == expected:
                note(f"{name}: already there")
                continue
            self._place(name, lambda part, name=name, expected=expected: _fetch(source, name, part, expected))  # type: ignore[misc]
            note(f"{name}: {size(target.stat().st_size)}")

    def _place(self, name: str, write: Callable[[Path], object], *, is_new: bool = False) -> None:
        """Write a file under another name and rename it; is_new: unless it exists."""
        target = self.path / name
        part = target.with_name(f".{target.name}{_PART}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(part)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            if is_new:
                with suppress(FileExistsError):
                    os.link(part, target)
            else:
                part.replace(target)
        finally:
            part.unlink(missing_ok=True)


class Bucket:
    """Objects below a gs:// URI, checked by the service; from one bucket to another without passing here."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return sorted(bucket.blobs(self.uri))

    def record(self) -> bytes | None:
        """Return the record, None if there is none."""
        return bucket.read(f"{self.uri}/{RECORD}")

    def write(self, source: Source, claim: Claim, note: Note) -> None:
        """Copy object by object."""
        for name in claim.stale:
            bucket.remove(f"{self.uri}/{name}")
        bucket.write(f"{self.uri}/{RECORD}", claim.record, is_new=not claim.replaces)
        if self.record() != claim.record:
            raise taken(self.uri)
        present = bucket.blobs(self.uri)
        for name, expected in source.digests.items():
            if name in present and f"crc32c:{present[name].crc32c}" == expected:
                note(f"{name}: already there")
            elif name in source.blobs:
                bucket.copy_object(source.blobs[name], f"{self.uri}/{name}")
                note(f"{name}: {size(source.blobs[name].size)}")
            else:
                note(f"{name}: {self._upload(source, name, present.get(name))}")

    def _upload(self, source: Source, name: str, present: Any) -> str:
        with tempfile.TemporaryDirectory(prefix="posttrain-") as scratch:
            path = here(source, name, source.digests[name], Path(scratch))
            crc32c = sources.digest(path, "crc32c").removeprefix("crc32c:")
            if present is not None and present.crc32c == crc32c:
                return "already there"
            bucket.upload(f"{self.uri}/{name}", path, crc32c)
            return size(path.stat().st_size)


def here(source: Source, name: str, expected: str, scratch: Path) -> Path:
    """Return the file on this machine, fetched into a directory unless it lies here."""
    if source.folder is not None:
        return source.folder / name
    path = scratch / name
    path.parent.mkdir(parents=True, exist_ok=True)
    _fetch(source, name, path, expected)
    return path


def _fetch(source: Source, name: str, path: Path, expected: str) -> None:
    source.fetch(name, path)
    sources.check(path, expected, name)


def size(count: int) -> str:
    """Format bytes: 512 B, 1.4 MB, 3.2 GB."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
