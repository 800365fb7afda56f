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
    tree: dict[str, Any], whole: dict[str, Any], scale: float, kind: packed_matrix.Format
) -> dict[str, Any]:
    """Merge like `merged`, for a tree with quantised matrices. whole: shapes and number formats of the result."""
    out: dict[str, Any] = {}
    for key, value in without_adapters(tree).items():
        adapter = tree.get(f"{key}{SUFFIX}")
        if quantize.is_quantised(value):
            make = partial(_layer, kind, value, adapter, scale, whole[key])
            out[key] = quantize.Stack(whole[key].shape, whole[key].dtype, make)
        elif adapter is not None:
            out[key] = _merged(value, adapter, scale, whole[key].dtype)
        elif isinstance(value, dict):
            out[key] = merged_by_layer(tree[key], whole[key], scale, kind)
        else:
            out[key] = value.astype(whole[key].dtype)
    return out


def _layer(kind: packed_matrix.Format, parts: Any, adapter: Any, scale: float, whole: Any, index: int) -> Array:
    of_layer = jax.tree.map(lambda x: x[index : index + 1], (parts, adapter))
    merged_layer: Array = _dequantised(kind, whole.shape[-2], *of_layer, scale)[0].astype(whole.dtype)
    return merged_layer


@partial(jax.jit, static_argnums=(0, 1))
def _dequantised(kind: packed_matrix.Format, rows: int, parts: Any, adapter: Any, scale: float) -> Array:
    matrix = quantize.dequantise(kind, parts, rows)
    return matrix if adapter is None else _merged(matrix, adapter, scale, None)


@partial(jax.jit, static_argnums=3)
def _merged(matrix: Array, adapter: dict[str, Array], scale: float, dtype: Any) -> Array:
    with jax.default_matmul_precision("highest"):
        update = jnp.einsum("...ir,...ro->...io", adapter["a"].astype(jnp.float32), adapter["b"].astype(jnp.float32))
    return (matrix.astype(jnp.float32) + scale * update).astype(dtype or matrix.dtype)
