"""The weights that a sampler holds: received in parts, placed for decoding, checked before anything samples with them.

The newest version's moving weights are kept on the host, too, because the next version may come as its changed part.
Weights that did not change are the same arrays on the devices in both versions. While a version arrives, those that
change are replaced one by one, so the devices never hold a version more than the trainer wants kept.

Where a sampler has several processes each has such a value and is given every weight, of which it places its devices'
shards. Nothing here is a collective, which would have to be in one order with the programs that sample meanwhile: each
process computes what its shards add to the checksums, and `total` adds up what all have.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pttrainer.models import Model, Params
from pttrainer.models.decoding.cut_matrix import Cut, CutMatrix, cut
from pttrainer.rollout.disaggregated.separate.changed_part import FULL, applied
from pttrainer.rollout.disaggregated.separate.messages import MessageError
from pttrainer.rollout.disaggregated.weight_sync import Held, Key, cuts_by_key, decoding_keys, key_of, named
from pttrainer.rollout.native.decoding_weights import decoding_shapes, decoding_shardings, for_kernels
from pttrainer.runtime.distributed.checksum import part_digest

Total = Callable[[np.ndarray], np.ndarray]
"""Returns the sum of an array over the processes of a sampler."""


class VersionMissing(Exception):
    """The sampler does not hold what a request counts on; the trainer sends it in full."""


class HeldWeights:
    """Versions of a model's weights on a mesh."""

    def __init__(self, model: Model, mesh: Mesh) -> None:
        self._model, self._mesh = model, mesh
        self._tree = jax.tree.structure(decoding_shapes(model))
        self._shapes = decoding_keys(model)
        where = decoding_shardings(model, mesh)
        self._where = {key_of(model, path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(where)}
        self._cuts = cuts_by_key(model, where)
        static = {name for name, _ in named(model.frozen(model.abstract()) or {})}
        self._static = {key for key in self._shapes if key[0] in static}
        self._host: dict[Key, np.ndarray] = {}
        self._placed: dict[Key, Held] = {}
        self._versions: dict[str, Params] = {}
        self._newest: str | None = None
        self._arriving: str | None = None
        self._lock = threading.Lock()
        shapes = [x.shape for x in self._shapes.values()]
        self._sums = ShardSums(mesh, shapes, [self._cuts.get(key) for key in self._shapes])

    @property
    def versions(self) -> list[str]:
        """Return the versions that can sample, oldest first."""
        return list(self._versions)

    @property
    def newest(self) -> str | None:
        """Return the version that a changed part may refer to."""
        return self._newest

    @property
    def has_static(self) -> bool:
        """Return True if all weights that never change are here."""
        return self._static <= self._placed.keys()

    def params(self, version: str) -> Params:
        """Return a version as `decode` reads it. Raises VersionMissing."""
        try:
            return self._versions[version]
        except KeyError:
            raise VersionMissing(f"{version}: not held; held: {', '.join(self._versions) or 'none'}") from None

    def begin(self, version: str, base: str | None, keep: Sequence[str]) -> None:
        """Expect a version, as the changed part of `base` or whole, and drop those that are not to be kept."""
        with self._lock:
            if base is not None and base != self._newest:
                raise VersionMissing(f"{base}: not the newest here; the newest: {self._newest}")
            self._versions = {name: held for name, held in self._versions.items() if name in keep}
            self._arriving, self._newest = version, None

    def put(self, version: str, key: Key, form: str, arrays: list[np.ndarray]) -> None:
        """Take one weight. Raises VersionMissing or MessageError."""
        with self._lock:
            if version != self._arriving:
                raise VersionMissing(f"{version}: not expected; expected: {self._arriving}")
            if key not in self._shapes:
                raise MessageError(f"{key}: no such weight")
            like = self._shapes[key]
            old = self._host.get(key)
            if old is None:
                if form != FULL:
                    raise VersionMissing(f"{key}: is not here, and came as {form}")
                old = np.broadcast_to(np.zeros((), like.dtype), like.shape)
            new = applied(old, form, arrays)
            self._placed[key] = _placed(new, self._where[key], self._cuts.get(key))
            if key not in self._static:
                self._host[key] = new

    def finish(self, version: str, sums: Mapping[Key, int], total: Total = lambda here: here) -> None:
        """Compare every weight with the trainer's checksums, and sample with this version from now on.

        Raises VersionMissing, on all processes alike, if one is not here or differs.
        """
        with self._lock:
            if version != self._arriving:
                raise VersionMissing(f"{version}: not expected; expected: {self._arriving}")
            missing = [key for key in self._shapes if key not in self._placed]
            if missing or sums.keys() != self._shapes.keys():
                raise VersionMissing(f"{version}: {len(missing)} weights did not arrive")
            arrays = [self._placed[key] for key in self._shapes]
            here = total(self._sums(arrays)).tolist()
            differing = [key for key, mine in zip(self._shapes, here, strict=True) if mine != sums[key]]
            if differing:
                self._arriving = None
                raise VersionMissing(
                    f"{version}: {differing[0][0]} and {len(differing) - 1} other weights differ from those sent"
                )
            with jax.set_mesh(self._mesh):
                self._versions[version] = for_kernels(self._model, jax.tree.unflatten(self._tree, arrays))
            self._arriving, self._newest = None, version


def _placed(whole: np.ndarray, where: Any, how: Cut | None) -> Held:
    """Place this process's shards. `device_put` would compare the host's copies of all processes, by a collective."""

    def placed(array: np.ndarray) -> Array:
        return jax.make_array_from_callback(array.shape, where, lambda index: array[index])

    held: Held = placed(whole) if how is None else jax.tree.map(placed, cut(whole, how))
    return held


class ShardSums:
    """What the shards on this process's devices add to the checksums of weights of these shapes, copies once.

    cuts: how each is cut; None: it is whole.
    """

    def __init__(self, mesh: Mesh, shapes: Sequence[tuple[int, ...]], cuts: Sequence[Cut | None]) -> None:
        self._devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
        here = Mesh(np.array(self._devices), ("part",))
        self._by_device = NamedSharding(here, PartitionSpec("part"))
        of_arrays = [shape for shape, how in zip(shapes, cuts, strict=True) for _ in range(how.parts if how else 1)]

        def sums(shards: list[Array], starts_1KX: Array) -> Array:
            parts = zip(shards, starts_1KX[0], of_arrays, strict=True)
            return jnp.stack([part_digest(shard, starts, shape) for shard, starts, shape in parts])[None]

        where = PartitionSpec("part")
        self._program = jax.jit(jax.shard_map(sums, mesh=here, in_specs=(where, where), out_specs=where))

    def __call__(self, weights: Sequence[Held]) -> np.ndarray:
        """Return one uint32 for each weight."""
        parts = [(w, held, part, x) for w, held in enumerate(weights) for part, x in enumerate(jax.tree.leaves(held))]
        starts_LKX = np.zeros((len(self._devices), len(parts), max(x.ndim for _, _, _, x in parts)), np.int32)
        counted_LK = np.zeros(starts_LKX.shape[:2], np.uint32)
        joined = []
        for k, (_, held, part, x) in enumerate(parts):
            shards = {shard.device: shard for shard in x.addressable_shards}
            for row, shard in enumerate(map(shards.__getitem__, self._devices)):
                counted_LK[row, k] = shard.replica_id == 0
                starts_LKX[row, k, : x.ndim] = [index.start or 0 for index in shard.index]
                if isinstance(held, CutMatrix):
                    starts_LKX[row, k, 1] = held.column(part, starts_LKX[row, k, 1])
            pieces = [shards[device].data for device in self._devices]
            shape = (len(pieces) * pieces[0].shape[0], *pieces[0].shape[1:])
            joined.append(jax.make_array_from_single_device_arrays(shape, self._by_device, pieces))
        sums_LK = np.asarray(self._program(joined, jax.device_put(starts_LKX, self._by_device)))
        sums_W = np.zeros(len(weights), np.uint32)
        np.add.at(sums_W, [w for w, _, _, _ in parts], np.sum(sums_LK * counted_LK, axis=0, dtype=np.uint32))
        return sums_W
