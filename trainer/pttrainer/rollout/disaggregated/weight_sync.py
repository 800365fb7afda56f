"""Weights from the devices that train to those that sample: in the format of decoding, some at a time, and proven.

    trainer   cut        some layers of the stack, or some tables, in the compute format, split in w equal parts
              move       part by part, device to device; w divides the devices of both sides, so that no part is sent
                         twice where the sides are equal, and nothing ever passes through the host
    sampler   put        gathered to where decoding wants them (`native.decoding_shardings`), one tree per layer
              compare    a checksum of every array, as it was cut and as it is held

The next chunk begins when the last one is in place, so beside the copy that the sampler keeps, a device of either side
holds one chunk at most: `CHUNK_BYTES` (or one array, if it is larger) / w; one that samples, what it gathers of it too.
With adapters only they move after the first time; what stays is compared again every time. Quantised matrices move
packed. Left out: several processes, each of which would see its own devices alone (`opening` refuses them).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptapi import run_directory
from pttrainer.errors import TransferError
from pttrainer.models import Model, Params
from pttrainer.rollout.native.buckets import CHUNK_BYTES
from pttrainer.rollout.native.native_engine import decoding_shapes, decoding_shardings
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.checksum import digest

Key = tuple[str, int]
"""An array that the sampler holds: its name in the trainer's tree, and its layer (`NO_LAYER`: of a table)."""
NO_LAYER = -1


class Chunk(NamedTuple):
    """Arrays that move together, of so many layers from `first` on; of tables, 0."""

    names: tuple[str, ...]
    first: int
    layers: int

    @property
    def keys(self) -> list[Key]:
        """What the sampler holds of it."""
        layers = range(self.first, self.first + self.layers) if self.layers else [NO_LAYER]
        return [(name, layer) for name in self.names for layer in layers]


class Transfer:
    """From one mesh to another. place: host arrays onto the sampler's mesh. chunk_bytes: the bound."""

    def __init__(
        self,
        model: Model,
        trainer: Mesh,
        sampler: Mesh,
        place: Callable[[Any], Any] = jax.device_put,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.mesh, self.place = sampler, place
        self._ways = math.gcd(trainer.size, sampler.size)
        self._from, self._to = _in_parts(trainer, self._ways), _in_parts(sampler, self._ways)
        shapes = decoding_shapes(model)
        self._tree = jax.tree.structure(shapes)
        self._shapes = {_key(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
        where = jax.tree_util.tree_leaves_with_path(decoding_shardings(model, sampler))
        self._where = {_key(path): leaf for path, leaf in where}
        stays = {name for name, _ in named(model.frozen(model.abstract()) or {})}
        self._moving = chunks({k: v for k, v in self._shapes.items() if k[0] not in stays}, chunk_bytes)
        self._staying = chunks({k: v for k, v in self._shapes.items() if k[0] in stays}, chunk_bytes)
        self._stayed: dict[Key, Array] = {}
        self._proofs: dict[Key, int] = {}
        self._programs: dict[Any, Any] = {}
        self._facts: dict[str, float] = {}

    def deliver(self, params: Params) -> Params:
        """The weights as `Model.for_decoding` makes them, on the sampler's mesh. Raises TransferError where what came
        is not what was sent."""
        began, arrays = time.monotonic(), dict(named(params))
        held, proofs, moved = self._sent(arrays, self._moving)
        if not self._stayed:
            self._stayed, self._proofs, first = self._sent(arrays, self._staying)
            moved += first
        held |= self._stayed
        self._compare(held, proofs | self._proofs)
        self._book({f"{run_directory.SECONDS}sync": time.monotonic() - began, run_directory.SYNC_BYTES: float(moved)})
        weights: Params = jax.tree.unflatten(self._tree, [held[key] for key in self._shapes])
        return weights

    def facts(self) -> dict[str, float]:
        """Seconds and bytes since this was asked last."""
        facts, self._facts = self._facts, {}
        return facts

    def _sent(self, arrays: dict[str, Array], parts: Sequence[Chunk]) -> tuple[dict[Key, Array], dict[Key, int], int]:
        """What the sampler now holds of these chunks, the checksums of what was sent, and its bytes."""
        held: dict[Key, Array] = {}
        proofs: dict[Key, int] = {}
        moved = 0
        for chunk in parts:
            placed, sums = self._send(chunk, [arrays[name] for name in chunk.names])
            held |= dict(zip(chunk.keys, placed, strict=True))
            proofs |= dict(zip(chunk.keys, sums, strict=True))
            moved += sum(x.nbytes for x in placed)
        return held, proofs, moved

    def _send(self, chunk: Chunk, arrays: list[Array]) -> tuple[list[Array], list[int]]:
        """One chunk, and the checksums of what was sent. Returns when nothing of it is under way any more."""
        cut, sums = self._program(self.cut, chunk)(arrays, np.int32(chunk.first))
        there = self._across(cut)
        with jax.set_mesh(self.mesh):
            placed: list[Array] = jax.block_until_ready(self._program(self.put, chunk)(there))
        return placed, np.asarray(sums).tolist()

    def _across(self, cut: Sequence[Array]) -> list[Array]:
        """The same parts on the sampler's devices."""
        there: list[Array] = jax.device_put(list(cut), [self._parts(self._to, x.shape) for x in cut])
        return there

    def _compare(self, held: dict[Key, Array], proofs: dict[Key, int]) -> None:
        """Every array that the sampler holds against what was sent."""
        keys = list(self._shapes)
        with jax.set_mesh(self.mesh):
            found = np.asarray(self._digests([held[key] for key in keys])).tolist()
        wrong = [(key, there) for key, there in zip(keys, found, strict=True) if there != proofs[key]]
        if wrong:
            (name, layer), there = wrong[0]
            of_layer = "" if layer == NO_LAYER else f" of layer {layer}"
            raise TransferError(
                f"rollout weights: {name}{of_layer}: the sampler holds other numbers than the trainer sent (checksum "
                f"{there:#010x}, sent {proofs[name, layer]:#010x}), and so do {len(wrong) - 1} other arrays; hint: a "
                "device or the network between them is faulty: start again on other machines"
            )

    def _program(self, make: Callable[[Chunk], Any], chunk: Chunk) -> Any:
        """Compiled once for all chunks that differ in their layers alone."""
        key = make.__name__, chunk.names, chunk.layers
        if key not in self._programs:
            self._programs[key] = make(chunk)
        return self._programs[key]

    @property
    def largest(self) -> Chunk:
        """Of all chunks the one of which a device holds most."""

        def held(chunk: Chunk) -> int:
            return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in self.parts(chunk))

        return max((*self._moving, *self._staying), key=held)

    def cut(self, chunk: Chunk) -> Any:
        """(arrays, first layer) -> (those layers in the format of decoding, split in parts; their checksums)."""
        dtypes = [x.dtype for x in self.parts(chunk)]

        def cut(arrays: list[Array], first: Array) -> tuple[list[Array], Array]:
            if chunk.layers:
                arrays = [jax.lax.dynamic_slice_in_dim(x, first, chunk.layers) for x in arrays]
            cast = [x.astype(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
            return cast, jnp.stack([digest(x) for one in cast for x in (one if chunk.layers else [one])])

        parts = [self._parts(self._from, x.shape) for x in self.parts(chunk)]
        return jax.jit(cut, out_shardings=(parts, sharding.replicated(self._from)))

    def put(self, chunk: Chunk) -> Any:
        """Parts -> arrays where decoding wants them, in the order of the chunk's keys."""

        def put(arrays: list[Array]) -> list[Array]:
            return [x for one in arrays for x in (one if chunk.layers else [one])]

        return jax.jit(put, out_shardings=[self._where[key] for key in chunk.keys])

    @cached_property
    def _digests(self) -> Any:
        return jax.jit(
            lambda arrays: jnp.stack([digest(x) for x in arrays]),
            out_shardings=sharding.replicated(self.mesh),
        )

    def parts(self, chunk: Chunk) -> list[jax.ShapeDtypeStruct]:
        """Its arrays as they are under way, on the sampler's devices: layers stacked, in equal parts."""
        first, stack = (0, (chunk.layers,)) if chunk.layers else (NO_LAYER, ())
        shapes = [(*stack, *self._shapes[name, first].shape) for name in chunk.names]
        return [
            jax.ShapeDtypeStruct(shape, self._shapes[name, first].dtype, sharding=self._parts(self._to, shape))
            for name, shape in zip(chunk.names, shapes, strict=True)
        ]

    def _parts(self, mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
        """The longest axis that can be split in equal parts is; where there is none, every device has all."""
        fitting = [axis for axis, size in enumerate(shape) if size and size % self._ways == 0]
        axes: list[str | None] = [None] * len(shape)
        if fitting:
            axes[max(fitting, key=lambda axis: shape[axis])] = "part"
        return NamedSharding(mesh, PartitionSpec(*axes))

    def _book(self, facts: dict[str, float]) -> None:
        self._facts = {name: self._facts.get(name, 0.0) + value for name, value in facts.items()}


def chunks(shapes: dict[Key, Any], most: int) -> list[Chunk]:
    """Tables, and layers of the stack, in chunks of at most `most` bytes; an array that is larger is one of its own."""
    tables = {name: x.size * x.dtype.itemsize for (name, layer), x in shapes.items() if layer == NO_LAYER}
    of_layer = {name: x.size * x.dtype.itemsize for (name, layer), x in shapes.items() if layer == 0}
    layers = 1 + max((layer for _, layer in shapes), default=NO_LAYER)
    found = [Chunk(names, 0, 0) for names in _groups(tables, most)]
    for names in _groups(of_layer, most):
        at_once = max(1, min(layers, most // max(1, sum(of_layer[name] for name in names))))
        found += [Chunk(names, first, min(at_once, layers - first)) for first in range(0, layers, at_once)]
    return found


def _groups(sizes: dict[str, int], most: int) -> list[tuple[str, ...]]:
    """Names in order, as many together as fit."""
    groups: list[tuple[str, ...]] = []
    room = 0
    for name, size in sizes.items():
        if groups and size <= room:
            groups[-1] += (name,)
        else:
            groups.append((name,))
            room = most
        room -= size
    return groups


def _in_parts(mesh: Mesh, ways: int) -> Mesh:
    """The same devices in the same order, for arrays split in so many parts."""
    return Mesh(mesh.devices.reshape(ways, -1), ("part", "copy"))


def named(tree: Params) -> list[tuple[str, Any]]:
    """Arrays of the trainer's tree by name: `layers.attention.q`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]


def _key(path: Any) -> Key:
    """Of an array in the tree of decoding."""
    is_layer = len(path) > 1 and isinstance(path[1], jax.tree_util.SequenceKey)
    named = (path[0], *path[2:]) if is_layer else path
    return jax.tree_util.keystr(named, simple=True, separator="."), path[1].idx if is_layer else NO_LAYER
