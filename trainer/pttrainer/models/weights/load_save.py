"""Weights from safetensors files onto the mesh, and back.

Reading goes tensor by tensor, in pieces of at most `PIECE_BYTES`, straight to the devices that hold a part of
it: a piece is cast, transposed and put into its place there, in a buffer that is donated at every step. So a
load takes what the devices hold and a few pieces, never a model or a stack of layers twice. What is quantised is one
tensor whole, then its parts. Writing goes one layer at a time, into files of at most `SHARD_BYTES`.

Missing, extra and misshapen weights are one error that lists all.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pttrainer.errors import ConfigError
from pttrainer.models.config import ModelConfig
from pttrainer.models.quantization import packed_matrix
from pttrainer.models.quantization import quantize as quant
from pttrainer.models.weights.hf_directory import INDEX, Checkpoint
from pttrainer.models.weights.hf_names import Names, Part, Stored, table
from pttrainer.models.weights.safetensors_file import write_header

PIECE_BYTES = 8 * 2**20
"""Large enough that a piece's cost is its bytes. What is freed goes back to the system only while pieces stay
small: with 32 MB the C library kept 130 MB more (docs/findings/training-on-cpu.md)."""

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Weight:
    """A weight of ours: its path, where it is stored, its (stacked) shape and number format, its layout."""

    path: tuple[str, ...]
    stored: Stored
    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Any = None

    @property
    def places(self) -> list[tuple[int, ...]]:
        """Return one index into the stacked axes per tensor in the checkpoint."""
        return list(product(*(range(size) for size in self.shape[: self.stored.stacked])))

    def name(self, place: tuple[int, ...]) -> str:
        """Return the tensor's name in the checkpoint."""
        return self.stored.name_of(place)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return the shape of each tensor in the checkpoint."""
        if self.stored.part is not None:
            return self.stored.part.whole
        shape = self.shape[self.stored.stacked :]
        return shape[::-1] if self.stored.transposed else shape

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Quantizing:
    """How matrices are quantised, and where the errors are collected."""

    kind: packed_matrix.Format
    errors: quant.QuantizationErrors


def load(
    config: ModelConfig,
    directory: Path,
    abstract: Any,
    shardings: Any,
    display_name: str = "",
    quantizing: Quantizing | None = None,
) -> Any:
    """Read the tree of `abstract` onto `shardings`. Raise ConfigError on files that do not fit the config.

    display_name: the directory's name in messages, as it may be a cached copy. quantizing: for matrices whose
    shardings are those of parts; `abstract` is always of unquantised matrices.
    """
    checkpoint = Checkpoint(directory, display_name or str(directory))
    weights = _weights(table(config), abstract, shardings)
    _check(config, checkpoint, weights)
    loaded = {weight.path: _read_as(checkpoint, weight, quantizing) for weight in weights}
    return _tree(abstract, loaded)


def load_adapters(
    names: Names, file: Path, abstract: Any, shardings: Any, *, display_name: str, unread: frozenset[str] = frozenset()
) -> Any:
    """Load adapters like `load`, from the one file that PEFT writes.

    Raises ConfigError on tensors that the job's adapters lack, except those in `unread`.
    """
    if not file.is_file():
        raise ConfigError(
            f"{display_name}: no {file.name}; accepted: PEFT's layout, with tensors in safetensors format"
        )
    checkpoint = Checkpoint(file.parent, display_name, file.name)
    weights = _weights(names, abstract, shardings)
    problems = _problems(checkpoint, weights, "the job's adapters are", unread)
    if problems:
        raise ConfigError(f"{display_name}: tensors are not those of the job's adapters: {'; '.join(problems)}")
    _check_outside_parts(checkpoint, weights)
    return _tree(abstract, {weight.path: _read(checkpoint, weight) for weight in weights})


def save(names: Names, params: Any, directory: Path | None, fetch: Callable[[Any], Any] = np.asarray) -> None:
    """Write weights as Hugging Face's files.

    `fetch` brings an array to the host; without a directory nothing else happens, for processes that must take part
    in fetching but do not write.
    """
    weights = _weights(names, params)
    files = _files(weights)
    places: dict[str, str] = {}
    for number, tensors in enumerate(files, start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        places |= dict.fromkeys([weight.name(place) for [(weight, place), *_] in tensors], file)
        _write_file(directory and directory / file, tensors, params, fetch)
    if directory is not None and len(files) > 1:
        total = sum(int(np.prod(weight.shape)) * weight.dtype.itemsize for weight in weights)
        (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))


def save_adapters(names: Names, params: Any, path: Path | None, fetch: Callable[[Any], Any] = np.asarray) -> None:
    """Write adapters like `save`, into the one file that PEFT reads."""
    weights = _weights(names, params)
    _write_file(path, list(_tensors(weights).values()), params, fetch)


def stored_shapes(config: ModelConfig, tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the checkpoint of a model with weights shaped like `tree`."""
    return {
        weight.name(place): weight.stored_shape for weight in _weights(table(config), tree) for place in weight.places
    }


def _weights(names: Names, tree: Any, shardings: Any = None) -> list[Weight]:
    weights = []
    for path, stored in names.items():
        leaf = _at(tree, path)
        sharding = None if shardings is None else _at(shardings, path)
        weights.append(Weight(path, stored, tuple(leaf.shape), np.dtype(leaf.dtype), sharding))
    return weights


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _tree(like: Any, leaves: dict[tuple[str, ...], Any]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[tuple(part.key for part in path)], like)


# Reading


def _read_as(checkpoint: Checkpoint, weight: Weight, quantizing: Quantizing | None) -> Any:
    if quantizing is not None and quant.is_quantised(weight.sharding):
        return _read_quantised(checkpoint, weight, quantizing)
    return _read(checkpoint, weight)


def _read_quantised(checkpoint: Checkpoint, weight: Weight, quantizing: Quantizing) -> quant.Parts:
    """Read tensor by tensor: unquantised on its shards, then into its place as parts."""
    kind, stacked = quantizing.kind, weight.stored.stacked
    start, put = _quantising(kind, weight.shape, stacked, tuple(sorted(weight.sharding.items())))
    buffers, shape = start(), weight.shape[stacked:]
    where = _tensor_sharding(kind, weight.sharding["codes"], shape)
    for place in weight.places:
        stored = replace(weight.stored, name=weight.name(place))
        tensor = _read(checkpoint, Weight(weight.path, stored, shape, np.dtype(np.float32), where))
        buffers, squares = put(buffers, tensor, np.array(place, np.int32))
        quantizing.errors.add(weight.path[-1], squares)
        jax.block_until_ready(buffers)  # one tensor at a time: what is queued is held
    parts: quant.Parts = buffers
    return parts


@lru_cache
def _quantising(kind: packed_matrix.Format, shape: tuple[int, ...], stacked: int, shardings: tuple[Any, ...]) -> Any:
    """Return two compiled functions: () -> empty parts, and (parts, tensor, place) -> updated parts, squares."""
    where = dict(shardings)

    def start() -> quant.Parts:
        shapes = jax.eval_shape(partial(quant.quantise, kind), jax.ShapeDtypeStruct(shape, jnp.float32))
        return {name: jnp.zeros(part.shape, part.dtype) for name, part in shapes.items()}

    def put(buffers: quant.Parts, tensor: jax.Array, place: jax.Array) -> tuple[quant.Parts, quant.Squares]:
        parts, squares = quant.quantise_measured(kind, tensor)

        def one(buffer: jax.Array, part: jax.Array) -> jax.Array:
            at = (*place, *[0] * part.ndim)
            return jax.lax.dynamic_update_slice(buffer, part.reshape((1,) * stacked + part.shape), at)

        return jax.tree.map(one, buffers, parts), squares

    return jax.jit(start, out_shardings=where), jax.jit(put, donate_argnums=0, out_shardings=(where, None))


def _tensor_sharding(kind: packed_matrix.Format, of_codes: Any, shape: tuple[int, ...]) -> Any:
    """Return the sharding of one tensor before it is quantised: split like its codes, if that divides it."""
    if not isinstance(of_codes, NamedSharding):
        return of_codes
    codes_ndim = len(of_codes.spec)
    names = [*of_codes.spec][-len(shape) :] if kind == "int8" else [*of_codes.spec][codes_ndim - len(shape) - 1 :]
    if kind == "nf4":
        del names[-2]  # of the bytes of a block
    sizes = [np.prod([of_codes.mesh.shape[axis] for axis in _mesh_axes(name)], dtype=int) for name in names]
    fitting = [name if size % by == 0 else None for name, size, by in zip(names, shape, sizes, strict=True)]
    return NamedSharding(of_codes.mesh, PartitionSpec(*fitting))


def _mesh_axes(name: Any) -> tuple[str, ...]:
    return () if name is None else (name,) if isinstance(name, str) else tuple(name)


def _read(checkpoint: Checkpoint, weight: Weight) -> jax.Array:
    """Read piece by piece into one buffer per device."""
    parts = weight.sharding.addressable_devices_indices_map(weight.shape)
    indices = {device: _bounds(index, weight.shape) for device, index in parts.items()}
    # With the run's mesh in context, a computation on one of its devices alone is refused.
    alone = {device: jax.sharding.Mesh(np.array([device]), ("device",)) for device in parts}
    buffers = _empty(weight)
    pending = 0
    for place in weight.places:
        holders = {device: index for device, index in indices.items() if _holds(index, place)}
        stored = {device: _stored_order(weight, index) for device, index in holders.items()}
        name = weight.name(place)
        for first, last in _pieces(checkpoint, name, {index[0] for index in stored.values()}):
            piece = checkpoint.rows(name, first, last)
            for device, index in stored.items():
                if index[0][0] <= first < index[0][1]:
                    part, start = _cut(piece, first, index)
                    where = [at - low for at, (low, _) in zip(place, holders[device], strict=False)]
                    where += start[::-1] if weight.stored.transposed else start
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


Bounds = tuple[tuple[int, int], ...]
"""First and last of each axis."""


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


def _stored_order(weight: Weight, index: Bounds) -> Bounds:
    inner = index[weight.stored.stacked :]
    stored = inner[::-1] if weight.stored.transposed else inner
    if weight.stored.part is None:
        return stored
    return tuple((low + at, high + at) for (low, high), at in zip(stored, weight.stored.part.first, strict=True))


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


def _cut(piece: np.ndarray, first: int, index: Bounds) -> tuple[np.ndarray, list[int]]:
    """Return a device's part of a piece that begins at row `first`, and its offset in the device's part."""
    columns = tuple(slice(low, high) for low, high in index[1:])
    return np.ascontiguousarray(piece[(slice(None), *columns)]), [first - index[0][0]] + [0] * len(columns)


@partial(jax.jit, donate_argnums=0, static_argnums=3)
def _put(buffer: jax.Array, piece: jax.Array, where: jax.Array, transposed: bool) -> jax.Array:
    block = (piece.T if transposed else piece).astype(buffer.dtype)
    block = block.reshape((1,) * (buffer.ndim - block.ndim) + block.shape)
    return jax.lax.dynamic_update_slice(buffer, block, tuple(where))


def _check(config: ModelConfig, checkpoint: Checkpoint, weights: list[Weight]) -> None:
    unread = {"lm_head.weight"} if config.tied_head else set()
    behind = tuple(f"model.layers.{config.layers + i}." for i in range(config.prediction_layers))
    unread |= {name for name in checkpoint.names() if name.startswith(behind)}
    problems = _problems(checkpoint, weights, "config.json says", frozenset(unread))
    if problems:
        listed = "; ".join(problems)
        raise ConfigError(f"{checkpoint.display_name}: weights do not fit config.json: {listed}")


def _problems(checkpoint: Checkpoint, weights: list[Weight], wanted: str, unread: frozenset[str]) -> list[str]:
    """Return missing, extra or misshapen tensors.

    wanted: text before an expected shape; unread: tensors that may be present.
    """
    expected = {weight.name(place): (weight, place) for weight in weights for place in weight.places}
    there = checkpoint.names()
    ours = {name: f"our {weight}" + "".join(f"[{at}]" for at in place) for name, (weight, place) in expected.items()}
    problems = [f"missing {name} ({ours[name]})" for name in sorted(expected.keys() - there)]
    problems += [f"extra {name}" for name in sorted(there - expected.keys() - unread)]
    return problems + [
        f"{name} ({ours[name]}) is {list(checkpoint.shape(name))}, {wanted} {list(weight.stored_shape)}"
        for name, (weight, _) in sorted(expected.items())
        if name in there and checkpoint.shape(name) != weight.stored_shape
    ]


def _check_outside_parts(checkpoint: Checkpoint, weights: list[Weight]) -> None:
    """Raise ConfigError if a tensor that holds several weights has other numbers than theirs."""
    for name, tensor in _tensors(weights).items():
        if tensor[0][0].stored.part is None:
            continue
        rest = checkpoint.rows(name, 0, checkpoint.shape(name)[0]).copy()
        for weight, place in tensor:
            rows, columns = (slice(low, high) for low, high in _stored_order(weight, _bounds_of(weight, place)))
            rest[rows, columns] = 0
        if rest.any():
            raise ConfigError(
                f"{checkpoint.display_name}: {name}: mixes {', '.join(weight.path[-2] for weight, _ in tensor)}; "
                "accepted: zeros but in one block for each of them, as this trainer exports"
            )


def _bounds_of(weight: Weight, place: tuple[int, ...]) -> Bounds:
    return tuple((at, at + 1) for at in place) + tuple((0, size) for size in weight.shape[len(place) :])


# Writing

_Tensor = list[tuple[Weight, tuple[int, ...]]]
"""The weights that a tensor holds: nearly always one."""


def _tensors(weights: list[Weight]) -> dict[str, _Tensor]:
    """Return what each tensor of a checkpoint holds, by its name."""
    tensors: dict[str, _Tensor] = {}
    for weight in weights:
        for place in weight.places:
            tensors.setdefault(weight.name(place), []).append((weight, place))
    return tensors


def _files(weights: list[Weight]) -> list[list[_Tensor]]:
    """Assign tensors to files."""
    files: list[list[_Tensor]] = [[]]
    size = 0
    for tensor in _tensors(weights).values():
        first, _ = tensor[0]
        each = int(np.prod(first.stored_shape)) * first.dtype.itemsize
        if size and size + each > SHARD_BYTES:
            files.append([])
            size = 0
        files[-1].append(tensor)
        size += each
    return files


def _write_file(path: Path | None, tensors: list[_Tensor], params: Any, fetch: Callable[[Any], Any]) -> None:
    if path is None:
        for _ in _host_tensors(tensors, params, fetch):
            pass
        return
    with path.open("wb") as file:
        firsts = (tensor[0] for tensor in tensors)
        write_header(file, ((weight.name(place), weight.dtype, weight.stored_shape) for weight, place in firsts))
        for tensor in _host_tensors(tensors, params, fetch):
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)


def _host_tensors(tensors: list[_Tensor], params: Any, fetch: Callable[[Any], Any]) -> Iterator[np.ndarray]:
    """Yield each tensor in its stored form; a layer's experts come to the host together."""
    fetched: tuple[Any, np.ndarray] | None = None
    for tensor in tensors:
        whole: np.ndarray | None = None
        for weight, place in tensor:
            if fetched is None or fetched[0] != (weight.path, place[:1]):
                value = _at(params, weight.path)
                fetched = (weight.path, place[:1]), np.asarray(fetch(value[place[0]] if place else value))
            own = fetched[1][place[1:]]
            own = own.T if weight.stored.transposed else own
            whole = own if weight.stored.part is None else _with_part(whole, own, weight.stored.part)
        assert whole is not None
        yield whole


def _with_part(whole: np.ndarray | None, own: np.ndarray, part: Part) -> np.ndarray:
    """Put a weight into its tensor; None for one that does not exist yet."""
    whole = np.zeros(part.whole, own.dtype) if whole is None else whole
    (row, column), (rows, columns) = part.first, own.shape
    whole[row : row + rows, column : column + columns] = own
    return whole
