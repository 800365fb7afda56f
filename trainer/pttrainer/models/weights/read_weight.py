"""Read one weight from a checkpoint, piece by piece, straight to the devices that hold a part of it.

A piece of at most `PIECE_BYTES` is cast, transposed and put into its place there, in a buffer that is donated at every
step. So a load takes what the devices hold and a few pieces, never a model or a stack of layers twice.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pttrainer.models.weights.hf_directory import Checkpoint
from pttrainer.models.weights.weight import Weight

PIECE_BYTES = 8 * 2**20
"""Large enough that a piece's cost is its bytes. What is freed goes back to the system only while pieces stay
small: with 32 MB the C library kept 130 MB more (docs/findings/training-on-cpu.md)."""

Bounds = tuple[tuple[int, int], ...]
"""First and last of each axis."""


def read_weight(checkpoint: Checkpoint, weight: Weight) -> jax.Array:
    """Read piece by piece into one buffer per device."""
    parts = weight.sharding.addressable_devices_indices_map(weight.shape)
    indices = {device: _bounds(index, weight.shape) for device, index in parts.items()}
    # With the run's mesh in context, a computation on one of its devices alone is refused.
    alone = {device: jax.sharding.Mesh(np.array([device]), ("device",)) for device in parts}
    buffers = _empty(weight)
    pending = 0
    for place in weight.places:
        holders = {device: index for device, index in indices.items() if _holds(index, place)}
        stored = {device: stored_slices(weight, index) for device, index in holders.items()}
        name = weight.name(place)
        for first, last in _pieces(checkpoint, name, {(rows.start, rows.stop) for rows, *_ in stored.values()}):
            piece = checkpoint.rows(name, first, last)
            for device, (rows, *columns) in stored.items():
                if rows.start <= first < rows.stop:
                    part = np.ascontiguousarray(piece[(slice(None), *columns)])
                    start = (first - rows.start, *[0] * len(columns))
                    where = [at - low for at, (low, _) in zip(place, holders[device], strict=False)]
                    where += weight.stored.order(start) if weight.stored_shape else ()
                    with jax.set_mesh(alone[device]):
                        buffers[device] = _put(
                            buffers[device],
                            jax.device_put(part, device),
                            np.array(where, np.int32),
                            weight.stored.transposed,
                        )
            pending += piece.nbytes
            if pending >= PIECE_BYTES:  # the host must not run ahead: what is queued is held
                jax.block_until_ready(list(buffers.values()))
                pending = 0
    return jax.make_array_from_single_device_arrays(weight.shape, weight.sharding, list(buffers.values()))


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _empty(weight: Weight) -> dict[jax.Device, jax.Array]:
    """Return zeros on each device; `jnp.zeros` with a device makes them on the first one and copies."""
    whole = _zeros(weight.shape, weight.dtype, weight.sharding)()
    return {shard.device: shard.data for shard in whole.addressable_shards}


@lru_cache
def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any], sharding: Any) -> Callable[[], jax.Array]:
    """Compile once for all tensors of a shape: quantised weights are read tensor by tensor."""
    return jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=sharding)


def _holds(index: Bounds, place: tuple[int, ...]) -> bool:
    return all(first <= at < last for at, (first, last) in zip(place, index, strict=False))


def stored_slices(weight: Weight, index: Bounds) -> tuple[slice, ...]:
    """Return where a part of a weight stands in its stored tensor."""
    if not weight.stored_shape:  # a number by itself is read like a row of one
        return (slice(0, 1),)
    stored = weight.stored.order(index[weight.stored.stacked :])
    if weight.stored.part is None:
        return tuple(slice(*bounds) for bounds in stored)
    return weight.stored.part.where(stored)


def _pieces(checkpoint: Checkpoint, name: str, rows: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that cover the devices' parts; none crosses the end of a part."""
    most = max(1, PIECE_BYTES // checkpoint.row_bytes(name))
    ends = sorted({end for bounds in rows for end in bounds})
    for low, high in pairwise(ends):
        if any(first <= low and high <= last for first, last in rows):
            # Equal pieces but for the last one: every other shape is compiled again.
            size = -(-(high - low) // -(-(high - low) // most))
            for first in range(low, high, size):
                yield first, min(first + size, high)


@partial(jax.jit, donate_argnums=0, static_argnums=3)
def _put(buffer: jax.Array, piece: jax.Array, where: jax.Array, transposed: bool) -> jax.Array:
    block = (piece.swapaxes(-1, -2) if transposed else piece).astype(buffer.dtype)
    block = block.reshape((1,) * (buffer.ndim - block.ndim) + block.shape)
    return jax.lax.dynamic_update_slice(buffer, block, tuple(where))
