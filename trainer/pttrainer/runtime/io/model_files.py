"""Local copies of a model's files, from `hf://`, `gs://` or `file://`.

Remote files are copied into a cache once and checked against the source's own checksums; a local directory is used in
place. Hugging Face models use the cache that all its tools share.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pttrainer.errors import ConfigError, NetworkError, StorageError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io import huggingface, storage
from pttrainer.runtime.io.gcs_download import download_all
from pttrainer.runtime.io.huggingface import HUB

Note = Callable[[str], None]
"""Shows one line to the user."""

FILES = ("*.json", "*.jinja", "tokenizer.model")
WEIGHTS = ("*.safetensors",)
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
NOT_OURS = ("*/*", "consolidated*", "adapter_*")
"""Directories may hold other formats; `consolidated` files repeat the weights under other names."""


class Pinned(NamedTuple):
    """Commits that a run started with."""

    model: str | None = None
    adapters: str | None = None


NOTHING_PINNED = Pinned()


@dataclass(frozen=True)
class ModelFiles:
    """A directory in Hugging Face's layout, and its commit if it has one."""

    directory: Path
    commit: str | None = None


def fetch(uri: str, field: str, note: Note, *, revision: str | None = None, weights: bool = True) -> ModelFiles:
    """Return the files behind a URI; raise ConfigError, naming `field`, if they are unavailable."""
    if uri.startswith(HUB):
        return _from_hub(uri, field, note, revision, (*FILES, *WEIGHTS) if weights else FILES)
    if revision is not None:
        raise ConfigError(f"{field}: {uri}: has no revisions; accepted: revision only with hf://")
    scheme, path = storage.split(uri)
    if scheme == "file":
        if not Path(path).is_dir():
            raise ConfigError(f"{field}: {uri}: no such directory; hint: the path must exist where the trainer runs")
        return ModelFiles(Path(path))
    return _from_bucket(uri, field, note, weights)


def fetch_adapters(uri: str, field: str, note: Note, *, revision: str | None = None) -> ModelFiles:
    """Return adapters in PEFT's layout like `fetch`; a model in the same repository is not downloaded."""
    if uri.startswith(HUB):
        return _snapshot(uri, field, note, revision, ADAPTERS, ())
    return fetch(uri, field, note)


def _from_bucket(uri: str, field: str, note: Note, weights: bool) -> ModelFiles:
    bucket = storage.bucket(uri)
    suffixes = tuple(pattern.removeprefix("*") for pattern in ((*FILES, *WEIGHTS) if weights else FILES))
    try:
        there = bucket.blobs()
    except NetworkError:
        raise
    except StorageError as error:
        raise ConfigError(f"{field}: {error}") from error
    blobs = {name: blob for name, blob in there.items() if name.endswith(suffixes) and "/" not in name}
    if not blobs:
        raise ConfigError(
            f"{field}: {uri}: holds no model files; hint: the URI must name the directory that holds config.json"
        )
    cache = processes.cache_directory() / "models" / hashlib.sha256(uri.encode()).hexdigest()[:16]
    download_all(uri, blobs, cache, note)
    return ModelFiles(cache)


def _from_hub(uri: str, field: str, note: Note, revision: str | None, patterns: tuple[str, ...]) -> ModelFiles:
    files = _snapshot(uri, field, note, revision, patterns, NOT_OURS)
    if not (files.directory / "config.json").is_file() and WEIGHTS[0] in patterns:
        raise ConfigError(
            f"{_named(uri, field, revision)}: has no config.json; accepted: a language model in safetensors format"
        )
    return files


def _snapshot(
    uri: str, field: str, note: Note, revision: str | None, patterns: tuple[str, ...], ignored: tuple[str, ...]
) -> ModelFiles:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError(
            f"{field}: {uri}: huggingface-hub is not installed; hint: pip install 'posttrain[trainer]'"
        ) from error
    note(f"fetching {uri}" + (f" at {revision}" if revision else ""))
    with huggingface.hub_errors(_named(uri, field, revision), "model", ConfigError):
        snapshot = snapshot_download(
            uri.removeprefix(HUB), revision=revision, allow_patterns=list(patterns), ignore_patterns=list(ignored)
        )
    directory = Path(snapshot)
    # A snapshot's directory is named by its commit.
    return ModelFiles(directory, directory.name)


def _named(uri: str, field: str, revision: str | None) -> str:
    return f"{field}: {uri}" + (f" at {revision}" if revision else "")
