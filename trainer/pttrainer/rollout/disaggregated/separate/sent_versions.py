"""The versions of the weights that samplers were sent, on the trainer's local disk: what the next one is compared with.

    static     the frozen weights of adapters, once
    slot i     the weights that move; version n is in slot n % copies, and replaces the one that nothing samples with

A sampler that returns reads a version from here, though the trainer may have taken more steps since. Memory holds one
chunk at a time (`weight_sync.chunks`): the files are mapped, and the system keeps of them what it has room for.
"""

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pttrainer.errors import StorageError
from pttrainer.models import Model, Params
from pttrainer.rollout.disaggregated.weight_sync import Chunk, Key, chunks, decoding_keys, named
from pttrainer.rollout.native.buckets import CHUNK_BYTES
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.checksum import digest

ALIGNED = 64
"""Each weight begins at a multiple of this many bytes of its file."""


class NewestLeaves:
    """Which arrays the newest version was made of, without keeping them."""

    def __init__(self) -> None:
        self._leaves: list[weakref.ref[Any]] = []

    def replace(self, params: Params) -> bool:
        """Return True if these are other arrays, which from now on are the newest."""
        leaves = jax.tree.leaves(params)
        if len(leaves) == len(self._leaves) and all(
            ref() is leaf for ref, leaf in zip(self._leaves, leaves, strict=True)
        ):
            return False
        self._leaves = [weakref.ref(leaf) for leaf in leaves]
        return True


class CutWeights:
    """Takes weights off the trainer's devices in the sampler's format, a chunk at a time.

    Where several processes train, each chunk is first gathered on every device, and all processes run the programs
    together: those that send call `parts`, the others `take_part`.
    """

    def __init__(self, model: Model, mesh: Mesh, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._mesh = mesh
        self.shapes = decoding_keys(model)
        static = {name for name, _ in named(model.frozen(model.abstract()) or {})}
        self.static = {key: x for key, x in self.shapes.items() if key[0] in static}
        self.moving = {key: x for key, x in self.shapes.items() if key[0] not in static}
        self._chunks = {True: chunks(self.static, chunk_bytes), False: chunks(self.moving, chunk_bytes)}
        self._programs: dict[Any, Any] = {}
        self._where = sharding.replicated(mesh) if jax.process_count() > 1 else None

    def parts(self, params: Params, *, static: bool) -> Iterator[tuple[dict[Key, np.ndarray], dict[Key, int]]]:
        """Yield arrays on the host, and their checksums by the trainer's devices."""
        for chunk, cut, sums in self._cuts(params, static=static):
            host = [np.asarray(x) for x in jax.device_get(cut)]
            flat = [x for one in host for x in (one if chunk.layers else [one])]
            yield (
                dict(zip(chunk.keys, flat, strict=True)),
                dict(zip(chunk.keys, np.asarray(sums).tolist(), strict=True)),
            )

    def take_part(self, params: Params, *, static: bool) -> None:
        """Run the programs of `parts`, one after the other, and keep nothing."""
        for _, _, sums in self._cuts(params, static=static):
            jax.block_until_ready(sums)

    def _cuts(self, params: Params, *, static: bool) -> Iterator[tuple[Chunk, list[Array], Array]]:
        arrays = dict(named(params))
        for chunk in self._chunks[static]:
            with jax.set_mesh(self._mesh):
                cut, sums = self._program(chunk)([arrays[name] for name in chunk.names], np.int32(chunk.first))
            yield chunk, cut, sums

    def _program(self, chunk: Chunk) -> Any:
        key = chunk.names, chunk.layers
        if key not in self._programs:
            first = chunk.keys[0][1]
            dtypes = [self.shapes[name, first].dtype for name in chunk.names]

            def cut(arrays: list[Array], first: Array) -> tuple[list[Array], Array]:
                if chunk.layers:
                    arrays = [jax.lax.dynamic_slice_in_dim(x, first, chunk.layers) for x in arrays]
                cast = [x.astype(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
                return cast, jnp.stack([digest(x) for one in cast for x in (one if chunk.layers else [one])])

            self._programs[key] = jax.jit(cut, out_shardings=(self._where, sharding.replicated(self._mesh)))
        return self._programs[key]


class SentVersions:
    """Files of the last `copies` versions, removed with this object. Raises StorageError if the disk is full."""

    def __init__(self, shapes: dict[Key, Any], static: Sequence[Key], copies: int) -> None:
        self._shapes, self._copies = shapes, copies
        self._directory = tempfile.TemporaryDirectory(prefix="posttrain-sent-weights-")
        self._places: dict[Key, int] = {}
        self._is_static = set(static)
        sizes = {True: 0, False: 0}
        for key, x in shapes.items():
            self._places[key] = sizes[key in self._is_static]
            sizes[key in self._is_static] += -(-x.size * x.dtype.itemsize // ALIGNED) * ALIGNED
        self._static = self._file("static", sizes[True])
        self._slots = [self._file(f"slot-{slot}", sizes[False]) for slot in range(copies)]

    def read(self, key: Key, version: int) -> np.ndarray:
        """Return a weight as a view of its file."""
        x = self._shapes[key]
        at = self._places[key]
        content = self._of(key, version)[at : at + x.size * x.dtype.itemsize]
        value: np.ndarray = np.asarray(content).view(x.dtype).reshape(x.shape)
        return value

    def write(self, key: Key, version: int, value: np.ndarray) -> None:
        """Replace a weight in its file."""
        at = self._places[key]
        self._of(key, version)[at : at + value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Remove the files."""
        self._slots, self._static = [], np.zeros(0, np.uint8)
        self._directory.cleanup()

    def _of(self, key: Key, version: int) -> np.ndarray:
        return self._static if key in self._is_static else self._slots[version % self._copies]

    def _file(self, name: str, size: int) -> np.ndarray:
        if size == 0:
            return np.zeros(0, np.uint8)
        path = Path(self._directory.name) / name
        try:
            with path.open("wb") as file:
                file.truncate(size)
                _reserve(file.fileno(), size)
            return np.memmap(path, np.uint8, "r+", shape=(size,))
        except OSError as error:
            raise StorageError(
                f"{path}: {error.strerror}; the weights that samplers were sent take {size / 2**30:.1f} GiB there; "
                "hint: TMPDIR on a volume with more room"
            ) from error


def _reserve(fd: int, size: int) -> None:
    """Take the room now: a write to a mapped file on a full disk ends the process."""
    os.posix_fallocate(fd, 0, size)
