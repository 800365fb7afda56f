"""The weights that a sampler holds: received in parts, placed for decoding, checked before anything samples with them.

The newest version's moving weights are kept on the host, too, because the next version may come as its changed part.
Weights that did not change are the same arrays on the devices in both versions. While a version arrives, those that
change are replaced one by one, so the devices never hold a version more than the trainer wants kept.
"""

import threading
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pttrainer.models import Model, Params
from pttrainer.rollout.disaggregated.separate.changed_part import FULL, applied
from pttrainer.rollout.disaggregated.separate.messages import MessageError
from pttrainer.rollout.disaggregated.weight_sync import Key, decoding_keys, key_of, named
from pttrainer.rollout.native.decoding_weights import decoding_shapes, decoding_shardings, for_kernels
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.checksum import digest


class VersionMissing(Exception):
    """The sampler does not hold what a request counts on; the trainer sends it in full."""


class HeldWeights:
    """Versions of a model's weights on a mesh."""

    def __init__(self, model: Model, mesh: Mesh) -> None:
        self._model, self._mesh = model, mesh
        self._tree = jax.tree.structure(decoding_shapes(model))
        self._shapes = decoding_keys(model)
        where = jax.tree_util.tree_leaves_with_path(decoding_shardings(model, mesh))
        self._where = {key_of(model, path): leaf for path, leaf in where}
        static = {name for name, _ in named(model.frozen(model.abstract()) or {})}
        self._static = {key for key in self._shapes if key[0] in static}
        self._host: dict[Key, np.ndarray] = {}
        self._placed: dict[Key, Array] = {}
        self._versions: dict[str, Params] = {}
        self._newest: str | None = None
        self._arriving: str | None = None
        self._lock = threading.Lock()
        self._digests = jax.jit(
            lambda arrays: jnp.stack([digest(x) for x in arrays]), out_shardings=sharding.replicated(mesh)
        )

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
            self._placed[key] = jax.device_put(new, self._where[key])
            if key not in self._static:
                self._host[key] = new

    def finish(self, version: str, sums: Mapping[Key, int]) -> None:
        """Compare every weight with the trainer's checksums, and sample with this version from now on.

        Raises VersionMissing if one is not here or differs.
        """
        with self._lock:
            if version != self._arriving:
                raise VersionMissing(f"{version}: not expected; expected: {self._arriving}")
            missing = [key for key in self._shapes if key not in self._placed]
            if missing or sums.keys() != self._shapes.keys():
                raise VersionMissing(f"{version}: {len(missing)} weights did not arrive")
            arrays = [self._placed[key] for key in self._shapes]
            with jax.set_mesh(self._mesh):
                here = np.asarray(self._digests(arrays)).tolist()
            differing = [key for key, mine in zip(self._shapes, here, strict=True) if mine != sums[key]]
            if differing:
                self._arriving = None
                raise VersionMissing(
                    f"{version}: {differing[0][0]} and {len(differing) - 1} other weights differ from those sent"
                )
            with jax.set_mesh(self._mesh):
                self._versions[version] = for_kernels(self._model, jax.tree.unflatten(self._tree, arrays))
            self._arriving, self._newest = None, version
