"""Initialise adapters (`adapters`), and merge them into their matrices."""

import zlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pttrainer.models.lora.adapters import EMBEDDING, SUFFIX, TABLES, without_adapters
from pttrainer.models.quantization import packed_matrix, quantize


def init(abstract: dict[str, Any], shardings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Initialise adapters like PEFT: A uniform within ±1/√in (Kaiming with a = √5), B zero.

    Of a table [V, D], the vocabulary's part is zero; the other is normal for the embedding, and like A for the
    head. Every array has a key of its own, so another choice of targets does not change an array's numbers. They
    are drawn on the host: compiling their generation takes seconds, and they are few.
    """

    def one(path: Any, x: Any, where: Any) -> Array:
        numbers = np.zeros(x.shape, x.dtype)
        is_table = path[0].key in TABLES
        own = np.random.Philox(key=[seed, zlib.crc32(jax.tree_util.keystr(path).encode())])
        if path[0].key == EMBEDDING and path[-1].key == "b":
            numbers = np.random.Generator(own).standard_normal(x.shape, x.dtype)
        elif path[-1].key == ("b" if is_table else "a"):
            inputs = x.shape[-1 if is_table else -2]
            numbers = (2 * np.random.Generator(own).random(x.shape, x.dtype) - 1) * np.float32(inputs**-0.5)
        return jax.make_array_from_callback(x.shape, where, lambda index: numbers[index])

    adapters: dict[str, Any] = jax.tree_util.tree_map_with_path(one, abstract, shardings)
    return adapters


def merged(tree: dict[str, Any], scale: float, dtype: str | None = None) -> dict[str, Any]:
    """Return weights that compute the same without adapters: W + scale · A·B, in float32.

    dtype: the number format of the result, also of what has no adapter; None for that of W.
    """
    out = {}
    for key, value in without_adapters(tree).items():
        if f"{key}{SUFFIX}" in tree:
            out[key] = _merged(value, tree[f"{key}{SUFFIX}"], scale, dtype)
        elif isinstance(value, dict):
            out[key] = merged(tree[key], scale, dtype)
        else:
            out[key] = value.astype(dtype or value.dtype)
    return out


def merged_by_layer(
    tree: dict[str, Any], whole: dict[str, Any], scale: float, kind: packed_matrix.Format | None
) -> dict[str, Any]:
    """Merge stacks of layers like `merged`, into stacks that are made one layer at a time, on demand.

    All at once may exceed the devices' memory. whole: shapes and number formats of the result; kind: of quantised ones.
    """
    out: dict[str, Any] = {}
    for key, value in without_adapters(tree).items():
        if isinstance(value, dict) and not quantize.is_quantised(value):
            out[key] = merged_by_layer(tree[key], whole[key], scale, kind)
        else:
            make = partial(_layer, kind, value, tree.get(f"{key}{SUFFIX}"), scale, whole[key])
            out[key] = quantize.Stack(whole[key].shape, whole[key].dtype, make)
    return out


def _layer(kind: packed_matrix.Format | None, parts: Any, adapter: Any, scale: float, whole: Any, index: int) -> Array:
    matrix, of_layer = _cut_out((parts, adapter), index)
    if kind is not None and quantize.is_quantised(parts):
        matrix = _dequantised(kind, whole.shape[-2], matrix, of_layer, scale)
    elif of_layer is not None:
        matrix = _merged(matrix, of_layer, scale, whole.dtype)
    merged_layer: Array = matrix[0].astype(whole.dtype)
    return merged_layer


@jax.jit
def _cut_out(stacks: Any, index: int) -> Any:
    """Return a layer of each stack, as a stack of one."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index, 1), stacks)


@partial(jax.jit, static_argnums=(0, 1))
def _dequantised(kind: packed_matrix.Format, rows: int, parts: Any, adapter: Any, scale: float) -> Array:
    matrix = quantize.dequantise(kind, parts, rows)
    return matrix if adapter is None else _merged(matrix, adapter, scale, None)


@partial(jax.jit, static_argnums=3)
def _merged(matrix: Array, adapter: dict[str, Array], scale: float, dtype: Any) -> Array:
    with jax.default_matmul_precision("highest"):
        update = jnp.einsum("...ir,...ro->...io", adapter["a"].astype(jnp.float32), adapter["b"].astype(jnp.float32))
    return (matrix.astype(jnp.float32) + scale * update).astype(dtype or matrix.dtype)
