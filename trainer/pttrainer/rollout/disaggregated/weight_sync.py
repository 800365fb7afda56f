"""Move weights from the training devices to the sampling ones: in decoding format, in chunks, and verified.

    trainer   cut        some layers of the stack, or some tables, in the compute format, split in w equal parts
              move       part by part, device to device; w divides the devices of both sides, so that no part is sent
                         twice if the sides are equal, and nothing ever passes through the host
    sampler   put        gathered to where decoding needs them (`decoding_shardings`), one tree per layer, and cut as
                       decoding reads them (`cut_matrix`)
              compare    a checksum of every array, as it was cut and as it was received

The next chunk begins when the last one is in place, so besides the copy that the sampler keeps, a device of either side
holds one chunk at most: `CHUNK_BYTES` (or one array, if it is larger) / w; one that samples, what it gathers of it too.
With adapters only they move after the first time; the static weights are compared again every time. Quantised matrices
move packed. Left out: several processes, each of which would see its own devices alone (`training.setup` refuses them).
"""

import math
import time
from collections import Counter
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
from pttrainer.models.decoding.cut_matrix import Cut, CutMatrix, cut, same_for_parts
from pttrainer.rollout.native.buckets import CHUNK_BYTES
from pttrainer.rollout.native.decoding_weights import decoding_shapes, decoding_shardings, group_cuts
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.checksum import digest

Key = tuple[str, int]
"""An array that the sampler holds: its name in the trainer's tree, and its place there (`NO_LAYER`: of a table)."""
NO_LAYER = -1
Held = Array | CutMatrix
"""A weight as the sampler holds it."""


class Chunk(NamedTuple):
    """Arrays that move together: `layers` layers from `first` on; 0 layers for tables."""

    names: tuple[str, ...]
    first: int
    layers: int

    @property
    def keys(self) -> list[Key]:
        """Return the keys of the chunk's arrays on the sampler."""
        layers = range(self.first, self.first + self.layers) if self.layers else [NO_LAYER]
        return [(name, layer) for name in self.names for layer in layers]


class WeightSync:
    """Transfer from one mesh to another. place: host arrays onto the sampler's mesh; chunk_bytes: the bound."""

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
        self._tree = jax.tree.structure(decoding_shapes(model))
        self._shapes = decoding_keys(model)
        where = decoding_shardings(model, sampler)
        self._where = {key_of(model, path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(where)}
        self._cuts = cuts_by_key(model, where)
        static_names = {name for name, _ in named(model.frozen(model.abstract()) or {})}
        self._moving_chunks = chunks({k: v for k, v in self._shapes.items() if k[0] not in static_names}, chunk_bytes)
        self._static_chunks = chunks({k: v for k, v in self._shapes.items() if k[0] in static_names}, chunk_bytes)
        self._static: dict[Key, Held] = {}
        self._checksums: dict[Key, int] = {}
        self._programs: dict[Any, Any] = {}
        self._facts: dict[str, float] = {}

    def deliver(self, params: Params) -> Params:
        """Return the weights as `Model.for_decoding` makes them, on the sampler's mesh.

        Raises TransferError if the received weights differ from those sent.
        """
        began, arrays = time.monotonic(), dict(named(params))
        received, checksums, moved = self._send_chunks(arrays, self._moving_chunks)
        if not self._static:
            self._static, self._checksums, first = self._send_chunks(arrays, self._static_chunks)
            moved += first
        received |= self._static
        self._check_received(received, checksums | self._checksums)
        self._add_facts(
            {f"{run_directory.SECONDS}sync": time.monotonic() - began, run_directory.SYNC_BYTES: float(moved)}
        )
        weights: Params = jax.tree.unflatten(self._tree, [received[key] for key in self._shapes])
        return weights

    def facts(self) -> dict[str, float]:
        """Return seconds and bytes since the last call."""
        facts, self._facts = self._facts, {}
        return facts

    def _send_chunks(
        self, arrays: dict[str, Array], parts: Sequence[Chunk]
    ) -> tuple[dict[Key, Held], dict[Key, int], int]:
        """Send chunks; return the received arrays, the checksums of what was sent, and its bytes."""
        received: dict[Key, Held] = {}
        checksums: dict[Key, int] = {}
        moved = 0
        for chunk in parts:
            placed, sums = self._send(chunk, [arrays[name] for name in chunk.names])
            received |= dict(zip(chunk.keys, placed, strict=True))
            checksums |= dict(zip(chunk.keys, sums, strict=True))
            moved += sum(x.nbytes for x in jax.tree.leaves(placed))
        return received, checksums, moved

    def _send(self, chunk: Chunk, arrays: list[Array]) -> tuple[list[Held], list[int]]:
        """Send one chunk and wait until it has arrived; return its arrays and the checksums of what was sent."""
        cut, sums = self._program(self.cut, chunk)(arrays, np.int32(chunk.first))
        at_sampler = self._across(cut)
        with jax.set_mesh(self.mesh):
            placed: list[Held] = jax.block_until_ready(self._program(self.put, chunk)(at_sampler))
        return placed, np.asarray(sums).tolist()

    def _across(self, cut: Sequence[Array]) -> list[Array]:
        """Return the same parts on the sampler's devices."""
        at_sampler: list[Array] = jax.device_put(list(cut), [self._parts(self._to, x.shape) for x in cut])
        return at_sampler

    def _check_received(self, received: dict[Key, Held], checksums: dict[Key, int]) -> None:
        """Compare every array on the sampler with what was sent."""
        keys = list(self._shapes)
        with jax.set_mesh(self.mesh):
            received_sums = np.asarray(self._digests([received[key] for key in keys])).tolist()
        mismatches = [
            (key, at_sampler)
            for key, at_sampler in zip(keys, received_sums, strict=True)
            if at_sampler != checksums[key]
        ]
        if mismatches:
            (name, layer), at_sampler = mismatches[0]
            of_layer = "" if layer == NO_LAYER else f" of layer {layer}"
            raise TransferError(
                f"rollout weights: {name}{of_layer}: the sampler's copy differs from what the trainer sent (checksum "
                f"{at_sampler:#010x}, sent {checksums[name, layer]:#010x}); so do {len(mismatches) - 1} other arrays; "
                "hint: a device or the network is faulty; restart the run on other machines"
            )

    def _program(self, make: Callable[[Chunk], Any], chunk: Chunk) -> Any:
        """Return the program, compiled once for all chunks that differ only in their layers."""
        key = make.__name__, chunk.names, chunk.layers
        if key not in self._programs:
            self._programs[key] = make(chunk)
        return self._programs[key]

    @property
    def largest(self) -> Chunk:
        """Return the chunk that takes the most memory on a device."""

        def received(chunk: Chunk) -> int:
            return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in self.parts(chunk))

        return max((*self._moving_chunks, *self._static_chunks), key=received)

    def cut(self, chunk: Chunk) -> Any:
        """Return (arrays, first layer) -> (those layers in decoding format, split in parts; their checksums)."""
        dtypes = [x.dtype for x in self.parts(chunk)]

        def cut(arrays: list[Array], first: Array) -> tuple[list[Array], Array]:
            if chunk.layers:
                arrays = [jax.lax.dynamic_slice_in_dim(x, first, chunk.layers) for x in arrays]
            cast = [x.astype(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
            return cast, jnp.stack([digest(x) for one in cast for x in (one if chunk.layers else [one])])

        parts = [self._parts(self._from, x.shape) for x in self.parts(chunk)]
        return jax.jit(cut, out_shardings=(parts, sharding.replicated(self._from)))

    def put(self, chunk: Chunk) -> Any:
        """Return parts -> arrays with decoding's shardings, in the order of the chunk's keys."""

        def put(arrays: list[Array]) -> list[Held]:
            whole = dict(zip(chunk.keys, (x for one in arrays for x in (one if chunk.layers else [one])), strict=True))
            return [cut(x, self._cuts[key]) if key in self._cuts else x for key, x in whole.items()]

        where = {key: self._where[key] for key in chunk.keys}
        out = [same_for_parts(one, self._cuts[key]) if key in self._cuts else one for key, one in where.items()]
        return jax.jit(put, out_shardings=out)

    @cached_property
    def _digests(self) -> Any:
        return jax.jit(
            lambda arrays: jnp.stack([digest(x.joined() if isinstance(x, CutMatrix) else x) for x in arrays]),
            out_shardings=sharding.replicated(self.mesh),
        )

    def parts(self, chunk: Chunk) -> list[jax.ShapeDtypeStruct]:
        """Return the chunk's arrays in transit, on the sampler's devices: layers stacked, in equal parts."""
        first, stack = (0, (chunk.layers,)) if chunk.layers else (NO_LAYER, ())
        shapes = [(*stack, *self._shapes[name, first].shape) for name in chunk.names]
        return [
            jax.ShapeDtypeStruct(shape, self._shapes[name, first].dtype, sharding=self._parts(self._to, shape))
            for name, shape in zip(chunk.names, shapes, strict=True)
        ]

    def _parts(self, mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
        """Split the longest axis that divides equally; without one, every device holds everything."""
        fitting = [axis for axis, size in enumerate(shape) if size and size % self._ways == 0]
        axes: list[str | None] = [None] * len(shape)
        if fitting:
            axes[max(fitting, key=lambda axis: shape[axis])] = "part"
        return NamedSharding(mesh, PartitionSpec(*axes))

    def _add_facts(self, facts: dict[str, float]) -> None:
        self._facts = {name: self._facts.get(name, 0.0) + value for name, value in facts.items()}


def chunks(shapes: dict[Key, Any], most: int) -> list[Chunk]:
    """Return tables and layers in chunks of at most `most` bytes; a larger array gets a chunk of its own."""
    tables = {name: x.size * x.dtype.itemsize for (name, layer), x in shapes.items() if layer == NO_LAYER}
    received_sums = [Chunk(names, 0, 0) for names in _groups(tables, most)]
    of_layer = {name: x.size * x.dtype.itemsize for (name, layer), x in shapes.items() if layer == 0}
    counts = Counter(name for name, layer in shapes if layer != NO_LAYER)
    for layers in dict.fromkeys(counts.values()):
        stacked = {name: size for name, size in of_layer.items() if counts[name] == layers}
        for names in _groups(stacked, most):
            at_once = max(1, min(layers, most // max(1, sum(stacked[name] for name in names))))
            received_sums += [Chunk(names, first, min(at_once, layers - first)) for first in range(0, layers, at_once)]
    return received_sums


def _groups(sizes: dict[str, int], most: int) -> list[tuple[str, ...]]:
    """Group names in order, as many together as fit."""
    groups: list[tuple[str, ...]] = []
    free = 0
    for name, size in sizes.items():
        if groups and size <= free:
            groups[-1] += (name,)
        else:
            groups.append((name,))
            free = most
        free -= size
    return groups


def _in_parts(mesh: Mesh, ways: int) -> Mesh:
    """Return the same devices in the same order, for arrays split into `ways` parts."""
    return Mesh(mesh.devices.reshape(ways, -1), ("part", "copy"))


def named(tree: Params) -> list[tuple[str, Any]]:
    """Return the arrays of the trainer's tree by name: `layers.attention.q`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]


def decoding_keys(model: Model) -> dict[Key, Any]:
    """Return the shapes of the arrays that a sampler holds, in the order of their tree."""
    return {key_of(model, path): x for path, x in jax.tree_util.tree_leaves_with_path(decoding_shapes(model))}


def cuts_by_key(model: Model, where: Any) -> dict[Key, Cut]:
    """Return how a sampler cuts its matrices; those that are not named are whole. where: `decoding_shardings`."""
    of_group = group_cuts(model, where)
    return {
        (f"{group.name}.mlp.{name}", place): how
        for group, place in model.config.layer_places
        for name, how in of_group[group.name].items()
    }


def key_of(model: Model, path: Any) -> Key:
    """Return the key of an array in the decoding tree."""
    if len(path) == 1 or not isinstance(path[1], jax.tree_util.SequenceKey):
        return jax.tree_util.keystr(path, simple=True, separator="."), NO_LAYER
    group, place = model.config.layer_places[path[1].idx]
    return f"{group.name}.{jax.tree_util.keystr(path[2:], simple=True, separator='.')}", place
