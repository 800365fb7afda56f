"""Load weights from safetensors files onto the mesh: all of a model's, or adapters, each as `read_weight` does.

What is quantised is one tensor whole, then its parts. Missing, extra and misshapen weights are one error that lists all
of them.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
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
from pttrainer.models.vision import names as vision_names
from pttrainer.models.weights.hf_directory import Checkpoint
from pttrainer.models.weights.hf_names import PACKED, PACKED_DOWN, Names, packed, table
from pttrainer.models.weights.read_weight import Bounds, read_weight, stored_slices
from pttrainer.models.weights.weight import Weight, tensors_of, weights_of

KEYS_AND_VALUES = ("k_proj", "v_proj", "k_norm", "v_norm")
"""Which released files have even for layers that read another layer's; nothing computes with them."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
ROWS_OF_HEAD = 16
"""Compared where a file has both although one should be the other."""


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
    unread: frozenset[str] = frozenset(),
) -> Any:
    """Read the tree of `abstract` onto `shardings`. Raise ConfigError on files that do not fit the config.

    display_name: the directory's name in messages, as it may be a cached copy. quantizing: for matrices whose
    shardings are those of parts; `abstract` is always of unquantised matrices. unread: tensors that may be there
    besides.
    """
    tower = None if config.vision is None else vision_names.prefix(config.vision)
    checkpoint = Checkpoint(directory, display_name or str(directory), tower=tower)
    names: Names = {**table(config), **_packed(config, checkpoint)}
    weights = weights_of(names, abstract, shardings)
    _check(config, checkpoint, weights, unread)
    loaded = {weight.path: _read_as(checkpoint, weight, quantizing) for weight in weights}
    return _tree(abstract, loaded)


def _packed(config: ModelConfig, checkpoint: Checkpoint) -> Names:
    """Return the names of experts' matrices that are packed, which way round the shapes in the files say."""
    shapes = {name: checkpoint.shape(name) for name in checkpoint.names() if name.endswith((PACKED, PACKED_DOWN))}
    if config.experts is None or not any(name.endswith(PACKED) for name in shapes):
        return {}
    D, F = config.d_model, config.experts.d_ff
    products = [(D, 2 * F) if name.endswith(PACKED) else (F, D) for name in shapes]
    is_transposed = any(tuple(shape[1:]) != own for shape, own in zip(shapes.values(), products, strict=True))
    return packed(config, transposed=is_transposed)


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
    weights = weights_of(names, abstract, shardings)
    problems = _problems(checkpoint, weights, "the job's adapters are", unread)
    if problems:
        raise ConfigError(f"{display_name}: tensors are not those of the job's adapters: {'; '.join(problems)}")
    _check_outside_parts(checkpoint, weights)
    return _tree(abstract, {weight.path: read_weight(checkpoint, weight) for weight in weights})


def _tree(like: Any, leaves: dict[tuple[str, ...], Any]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[tuple(part.key for part in path)], like)


def _read_as(checkpoint: Checkpoint, weight: Weight, quantizing: Quantizing | None) -> Any:
    if quantizing is not None and quant.is_quantised(weight.sharding):
        return _read_quantised(checkpoint, weight, quantizing)
    return read_weight(checkpoint, weight)


def _read_quantised(checkpoint: Checkpoint, weight: Weight, quantizing: Quantizing) -> quant.Parts:
    """Read tensor by tensor: unquantised on its shards, then into its place as parts."""
    kind, stacked = quantizing.kind, weight.stored.stacked
    start, put = _quantising(kind, weight.shape, stacked, tuple(sorted(weight.sharding.items())))
    buffers, shape = start(), weight.shape[stacked:]
    where = _tensor_sharding(kind, weight.sharding["codes"], shape)
    for place in weight.places:
        stored = replace(weight.stored, name=weight.name(place))
        tensor = read_weight(checkpoint, Weight(weight.path, stored, shape, np.dtype(np.float32), where))
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


def _check(config: ModelConfig, checkpoint: Checkpoint, weights: list[Weight], unread: frozenset[str]) -> None:
    if config.tied_head:
        if not unread:  # or the model predicts nothing (`headless`)
            _check_tied_head(checkpoint)
        unread |= {HEAD}
    behind = tuple(f"model.layers.{config.layers + i}." for i in range(config.prediction_layers))
    borrowing = tuple(f"model.layers.{i}.self_attn." for i in range(config.layers) if config.borrows(i))
    unread |= {
        name
        for name in checkpoint.names()
        if name.startswith(behind) or (name.startswith(borrowing) and name.split(".")[-2] in KEYS_AND_VALUES)
    }
    problems = _problems(checkpoint, weights, "config.json says", unread)
    if problems:
        listed = "; ".join(problems)
        raise ConfigError(f"{checkpoint.display_name}: weights do not fit config.json: {listed}")


def _check_tied_head(checkpoint: Checkpoint) -> None:
    """Refuse a head beside the embedding that is another one, by a few rows: transformers would use it."""
    if not {HEAD, EMBEDDING} <= checkpoint.names() or checkpoint.shape(HEAD) != checkpoint.shape(EMBEDDING):
        return
    for row in np.linspace(0, checkpoint.shape(HEAD)[0] - 1, ROWS_OF_HEAD, dtype=int).tolist():
        if not np.array_equal(checkpoint.rows(HEAD, row, row + 1), checkpoint.rows(EMBEDDING, row, row + 1)):
            raise ConfigError(
                f"{checkpoint.display_name}: {HEAD} is not the embedding, although config.json says "
                "tie_word_embeddings: true; accepted: a head that is the embedding, or none; hint: false there uses "
                "this head, as transformers 5 does in either case"
            )


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
    for name, tensor in tensors_of(weights).items():
        if tensor[0][0].stored.part is None:
            continue
        rest = checkpoint.rows(name, 0, checkpoint.shape(name)[0]).copy()
        for weight, place in tensor:
            rest[stored_slices(weight, _bounds_of(weight, place))] = 0
        if rest.any():
            raise ConfigError(
                f"{checkpoint.display_name}: {name}: mixes {', '.join(weight.path[-2] for weight, _ in tensor)}; "
                "accepted: zeros but in one block for each of them, as this trainer exports"
            )


def _bounds_of(weight: Weight, place: tuple[int, ...]) -> Bounds:
    return tuple((at, at + 1) for at in place) + tuple((0, size) for size in weight.shape[len(place) :])
