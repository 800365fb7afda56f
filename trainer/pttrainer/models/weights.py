"""Weights between safetensors files and the mesh.

Reading goes tensor by tensor straight to the shards that need it: a device asks for its slice of a stacked
weight, and only the layers and rows in it are read. Writing goes the other way, one layer's tensor at a
time, into files of at most `SHARD_BYTES`. Missing, extra and misshapen weights are one error that lists all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from pttrainer.errors import ConfigError
from pttrainer.models.config import ModelConfig
from pttrainer.models.names import Stored, table

SHARD_BYTES = 4 * 2**30
INDEX = "model.safetensors.index.json"
Index = tuple[slice, ...]


class Checkpoint:
    """The safetensors files of a directory, opened lazily."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = [safe_open(path, framework="np") for path in sorted(directory.glob("*.safetensors"))]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118
        if not self._file_of:
            raise ConfigError(f"spec.model.uri: {directory}: no *.safetensors file")

    def names(self) -> set[str]:
        """All tensors."""
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def read(self, name: str, index: Index, transposed: bool) -> np.ndarray:
        """A slice of a tensor, as [in, out]."""
        part = self._file_of[name].get_slice(name)[index[::-1] if transposed else index]
        return np.asarray(part).T if transposed else np.asarray(part)


def load(config: ModelConfig, directory: Path, abstract: Any, shardings: Any) -> Any:
    """The tree of `abstract`, read onto `shardings`. Raises ConfigError on files that do not fit the config."""
    checkpoint = Checkpoint(directory)
    names = table(config)
    _check(config, checkpoint, abstract)

    def one(path: Any, shape: Any, sharding: Any) -> jax.Array:
        key = tuple(part.key for part in path)
        stored = names[key]

        def shard(index: Index) -> np.ndarray:
            return _read(checkpoint, stored, key, tuple(index), shape.shape).astype(shape.dtype)

        return jax.make_array_from_callback(shape.shape, sharding, shard)

    return jax.tree_util.tree_map_with_path(one, abstract, shardings)


def save(config: ModelConfig, params: Any, directory: Path) -> None:
    """Writes weights (host arrays) as Hugging Face's files, tensor by tensor in files of bounded size."""
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in _tensors(config, params):
        if size and size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    if len(shards) == 1:
        save_file(shards[0], directory / "model.safetensors", {"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file, {"format": "pt"})
        places |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))


def _tensors(config: ModelConfig, params: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, stored in table(config).items():
        value = params
        for key in path:
            value = value[key]
        layers = enumerate(value) if path[0] == "layers" else [(0, value)]
        for i, tensor in layers:
            yield stored.name.format(i=i), np.ascontiguousarray(tensor.T if stored.transposed else tensor)


def _read(checkpoint: Checkpoint, stored: Stored, path: tuple[str, ...], index: Index, shape: tuple[int, ...]) -> np.ndarray:
    if path[0] != "layers":
        return checkpoint.read(stored.name, index, stored.transposed)
    layers = range(*index[0].indices(shape[0]))
    return np.stack([checkpoint.read(stored.name.format(i=i), index[1:], stored.transposed) for i in layers])


def _check(config: ModelConfig, checkpoint: Checkpoint, abstract: Any) -> None:
    expected: dict[str, tuple[int, ...]] = {}
    ours: dict[str, str] = {}
    for path, stored in table(config).items():
        leaf = abstract
        for key in path:
            leaf = leaf[key]
        stacked = path[0] == "layers"
        shape = leaf.shape[1:] if stacked else leaf.shape
        for i in range(config.layers if stacked else 1):
            name = stored.name.format(i=i)
            expected[name] = shape[::-1] if stored.transposed else shape
            ours[name] = ".".join(path) + (f"[{i}]" if stacked else "")
    there = checkpoint.names()
    problems = [f"missing {name} (our {ours[name]})" for name in sorted(expected.keys() - there)]
    tied = {"lm_head.weight"} if config.tied_head else set()
    problems += [f"extra {name}" for name in sorted(there - expected.keys() - tied) if not name.endswith("rotary_emb.inv_freq")]
    problems += [
        f"{name} (our {ours[name]}) is {list(checkpoint.shape(name))}, config.json says {list(shape)}"
        for name, shape in sorted(expected.items())
        if name in there and checkpoint.shape(name) != tuple(shape)
    ]
    if problems:
        raise ConfigError(f"spec.model.uri: {checkpoint.directory}: weights do not fit config.json: " + "; ".join(problems))
