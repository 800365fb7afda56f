"""Local copies of the files behind a job's data URI: a file, a pattern or a directory, of file, gs or hf.

The source is listed first, then the job's choice is applied (`selection`), and only the chosen files are fetched. They
are cached and checked like a model's files.
"""

import glob
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptapi.spec import DataSource
from pttrainer.data.sources import formats, selection
from pttrainer.errors import ConfigError, DataError, NetworkError, StorageError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io import file_digests, huggingface, storage
from pttrainer.runtime.io.gcs_download import download_all

Note = Callable[[str], None]


@dataclass(frozen=True)
class DataFile:
    """A file of rows: its name in messages, and its local path."""

    uri: str
    path: Path


@dataclass(frozen=True)
class Listing:
    """The files behind a URI. is_whole: the URI names a directory, whose data files are still to be selected."""

    root: str
    names: Sequence[str]
    fetch: Callable[[Sequence[str]], dict[str, Path]]
    is_whole: bool = False


def find(source: DataSource, field: str, note: Note) -> list[DataFile]:
    """Return the files of a data source, in reading order; raise DataError, naming `field`."""
    where = f"{field}.uri: {source.uri}"
    listing = _list(source, where, note)
    names = list(listing.names)
    if listing.is_whole:
        names = selection.in_directory(names)
        if not names:
            raise DataError(f"{where}: no data files in this directory; accepted: {formats.ACCEPTED}")
    if source.split is not None:
        names = selection.of_split(names, source.split, where)
    if listing.is_whole:
        selection.check_unmixed(names, where, field)
        if source.uri.startswith(huggingface.HUB):
            selection.check_one_directory(names, where)
    paths = listing.fetch(names)
    return [DataFile(f"{listing.root}/{name}", paths[name]) for name in names]


def read(file: DataFile) -> bytes:
    """Return the content; raise DataError."""
    with _readable(file):
        return file.path.read_bytes()


def facts(source: DataSource, field: str) -> dict[str, Any]:
    """Return what the lineage records of a (pinned) source: its commit, every file's size and hash."""
    return {"commit": source.revision, "files": [_facts(file) for file in find(source, field, silent)]}


def pinned(source: DataSource, field: str, commit: str | None) -> DataSource:
    """Pin the source to a commit, if it has commits: the given one, or its revision's current one."""
    if not source.uri.startswith(huggingface.HUB):
        return source
    repository, _ = _dataset(source.uri, f"{field}.uri: {source.uri}")
    if commit is None:
        with huggingface.hub_errors(_at(source, f"{field}.uri: {source.uri}"), "data set", DataError):
            commit = huggingface.dataset_commit(repository, source.revision)
    return source.model_copy(update={"revision": commit})


def _facts(file: DataFile) -> dict[str, Any]:
    with _readable(file):
        return {"uri": file.uri, "sha256": file_digests.sha256(file.path), "bytes": file.path.stat().st_size}


@contextmanager
def _readable(file: DataFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{file.uri}: cannot be read: {error.strerror or error}") from error


def _list(source: DataSource, where: str, note: Note) -> Listing:
    scheme, _, path = source.uri.partition("://")
    if scheme == "file":
        return _on_disk(Path(path), where)
    return _in_bucket(path, where, note) if scheme == "gs" else _on_hub(source, where, note)


def _on_disk(path: Path, where: str) -> Listing:
    def listing(root: Path, names: Sequence[str], *, is_whole: bool = False) -> Listing:
        return Listing(f"file://{root}", names, lambda chosen: {name: root / name for name in chosen}, is_whole)

    try:
        if path.is_dir():
            below = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
            return listing(path, below, is_whole=True)
        if path.exists():
            if not path.is_file():
                raise DataError(f"{where}: is not a regular file; accepted: a file, a pattern or a directory")
            return listing(path.parent, [path.name])
        if selection.is_pattern(str(path)):
            root = Path(selection.base_of(str(path))[0])
            paths = [Path(match) for match in glob.glob(str(path), recursive=True)]
            return listing(root, _some(sorted(str(f.relative_to(root)) for f in paths if f.is_file()), where))
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror or error}") from error
    raise DataError(f"{where}: no such file; hint: the path must exist where the trainer runs")


def _in_bucket(path: str, where: str, note: Note) -> Listing:
    bucket_name, _, key = path.partition("/")
    pattern = None
    if selection.is_pattern(key):
        head, pattern = selection.base_of(key)
    else:
        head = key.rstrip("/")
    try:
        blobs = storage.bucket(f"gs://{bucket_name}/{head}").blobs()
        is_whole = pattern is None and bool(blobs)
        if pattern is None and not blobs:
            head, _, last = head.rpartition("/")
            blob = storage.bucket(f"gs://{bucket_name}/{head}").blob(last)
            blobs = {} if blob is None else {last: blob}
    except NetworkError:
        raise
    except StorageError as error:
        raise DataError(f"{where.partition(': ')[0]}: {error}") from error
    root = f"gs://{bucket_name}/{head}".rstrip("/")
    names = selection.matching(sorted(blobs), pattern) if pattern is not None else sorted(blobs)
    if not names and pattern is None:
        raise DataError(f"{where}: no such file; accepted: an object, a pattern or a directory of the bucket")

    def fetch(chosen: Sequence[str]) -> dict[str, Path]:
        cache = processes.cache_directory() / "data" / hashlib.sha256(root.encode()).hexdigest()[:16]
        for name in chosen:
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            download_all(root, {name: blobs[name] for name in chosen}, cache, note)
        except ConfigError as error:
            raise DataError(str(error)) from error
        return {name: cache / name for name in chosen}

    return Listing(root, _some(names, where), fetch, is_whole)


def _on_hub(source: DataSource, where: str, note: Note) -> Listing:
    repository, path = _dataset(source.uri, where)
    with huggingface.hub_errors(_at(source, where), "data set", DataError):
        commit = huggingface.dataset_commit(repository, source.revision)
        names = sorted(huggingface.dataset_names(repository, commit))

    def fetch(chosen: Sequence[str]) -> dict[str, Path]:
        note(f"fetching {source.uri} at {commit}: {len(chosen)} files")
        with huggingface.hub_errors(_at(source, where), "data set", DataError):
            return huggingface.dataset_files(repository, commit, chosen)

    root = f"{huggingface.DATASETS}{repository}"
    if path in names:
        return Listing(root, [path], fetch)
    if selection.is_pattern(path):
        return Listing(root, _some(selection.matching(names, path), where), fetch)
    below = [name for name in names if not path or name.startswith(f"{path}/")]
    if not below:
        raise DataError(f"{where}: no such file or directory in {repository}; hint: the files are listed on its page")
    return Listing(root, below, fetch, is_whole=True)


def _dataset(uri: str, where: str) -> tuple[str, str]:
    """Return the repository, and the path in it."""
    organisation, name, *path = [*uri.removeprefix(huggingface.DATASETS).rstrip("/").split("/"), ""]
    if not uri.startswith(huggingface.DATASETS) or not organisation or not name:
        raise DataError(f"{where}: not a data set name; accepted: hf://datasets/organisation/name, and a path in it")
    return f"{organisation}/{name}", "/".join(path).rstrip("/")


def _at(source: DataSource, where: str) -> str:
    return where if source.revision is None else f"{where} at {source.revision}"


def _some(names: list[str], where: str) -> list[str]:
    if not names:
        raise DataError(f"{where}: no file matches the pattern")
    return names


def silent(line: str) -> None:
    """Discard the line, for callers without an audience."""
