"""A directory as a layer: the same files make the same bytes, whenever and by whomever the layer is made.

Times, owners and the order of names are fixed; of the mode only whether a file may be run is kept. What `.dockerignore`
leaves out is left out.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from ptctl.errors import InputError

_IGNORE = ".dockerignore"
_ALWAYS_OUT = (".git", "__pycache__")


@dataclass(frozen=True)
class Layer:
    """A compressed layer. digest: of these bytes; diff_id: of the archive in them."""

    digest: str
    diff_id: str
    size: int
    files: int


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def write(directory: Path, place: str, target: Path, more: Mapping[str, bytes] = MappingProxyType({})) -> Layer:
    """Write the directory's files, as they are to lie below `place`, and `more` of them. Raises InputError."""
    if not directory.is_dir():
        raise InputError(f"{directory}: not a directory; accepted: the directory whose files go into the image")
    names = list(_names(directory))
    with target.open("wb") as file:
        outer = _Hashing(file)
        with gzip.GzipFile(filename="", fileobj=outer, mode="wb", mtime=0) as zipped:
            inner = _Hashing(zipped)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
                if place:
                    _add(archive, directory, place.strip("/"))
                for name in names:
                    _add(archive, directory / name, f"{place}/{name}".strip("/"))
                for name, content in more.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return Layer(
        f"sha256:{outer.sha256.hexdigest()}", f"sha256:{inner.sha256.hexdigest()}", target.stat().st_size, len(names)
    )


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    status = path.lstat()
    info = tarfile.TarInfo(name)
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
    elif stat.S_ISDIR(status.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    elif stat.S_ISREG(status.st_mode):
        info.size, info.mode = status.st_size, 0o755 if status.st_mode & 0o111 else 0o644
        with path.open("rb") as content:
            archive.addfile(info, content)
        return
    else:
        raise InputError(f"{path}: neither a file, a directory nor a link", f"name it in {_IGNORE}")
    archive.addfile(info)


def _names(directory: Path) -> Iterator[str]:
    """Yield the names below a directory that go into the image, sorted."""
    patterns = _patterns(directory / _IGNORE)
    for path in sorted(directory.rglob("*"), key=lambda each: each.relative_to(directory).parts):
        name = path.relative_to(directory).as_posix()
        if not _is_out(name, patterns) and not set(path.relative_to(directory).parts) & set(_ALWAYS_OUT):
            yield name


def _patterns(file: Path) -> list[str]:
    if not file.is_file():
        return []
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _is_out(name: str, patterns: list[str]) -> bool:
    """Return True if the last pattern that matches the name, or a directory above it, leaves it out."""
    is_out = False
    above = [name.rsplit("/", depth)[0] for depth in range(name.count("/") + 1)]
    for pattern in patterns:
        keeps = pattern.startswith("!")
        parts = pattern.removeprefix("!").strip("/").removeprefix("./").split("/")
        if any(_matches(each.split("/"), parts) for each in above):
            is_out = not keeps
    return is_out


def _matches(name: list[str], pattern: list[str]) -> bool:
    """Return True if the parts match, ** any number of them."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[skipped:], pattern[1:]) for skipped in range(len(name) + 1))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])
