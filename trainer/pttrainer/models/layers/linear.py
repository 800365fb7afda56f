"""Linear layers: how a weight is made, and the product of activations with one, with its bias and its adapter.

Letters: B rows, T tokens, X inputs, Y outputs.

Weights of all layers of a kind are created stacked (leading axis L) and carry the logical names of their axes, as in
`shapes.parameters`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.decoding import decode_backend
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters
from pttrainer.models.shapes.parameters import ParamSpec
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.explicit_collectives import SplitMatrix

Drop = Callable[[str, Array], Array]
"""(matrix, x_BTX) -> the matrix's adapter's input in training (`lora_dropout`)."""


def weight(rngs: nnx.Rngs, of: ParamSpec, std: float) -> nnx.Param[Array]:
    """Create a matrix of normal numbers."""
    return nnx.Param(std * jax.random.truncated_normal(_next_key(rngs), -3.0, 3.0, of.shape, jnp.float32), axes=of.axes)


def _next_key(rngs: nnx.Rngs) -> Array:
    """Return `rngs.params()`, which asks a traced counter for its sharding: jax writes a page of why there is none."""
    stream = rngs.params
    count = stream.count[...]
    stream.count.set_value(count + 1)
    return jax.random.fold_in(stream.key[...], count)


def zeros(of: ParamSpec) -> nnx.Param[Array]:
    """Create a bias, or another weight that starts without effect."""
    return nnx.Param(jnp.zeros(of.shape, jnp.float32), axes=of.axes)


def zeros_if(of: ParamSpec | None) -> nnx.Param[Array] | None:
    """Create zeros, or None if the model lacks this weight."""
    return None if of is None else zeros(of)


class LowRank(nnx.Module):
    """An adapter's part of a product: scale · (x·A)·B. `init_and_merge.init` makes its first numbers."""

    def __init__(self, name: str, matrix: nnx.Param[Array], adapters: Adapters) -> None:
        self.name = name
        self.scale = adapters.scale
        of = parameters.low_rank(ParamSpec(matrix[...].shape, matrix.get_metadata()["axes"]), adapters.rank)
        self.a, self.b = zeros(of["a"]), zeros(of["b"])

    def __call__(self, x: Array) -> Array:
        """Return scale · (x·A)·B."""
        return ((x @ self.a[...].astype(x.dtype)) * jnp.asarray(self.scale, x.dtype)) @ self.b[...].astype(x.dtype)


def low_rank(name: str, matrix: nnx.Param[Array], adapters: Adapters | None) -> LowRank | None:
    """Return the adapter of a matrix, if the model has one there."""
    return LowRank(name, matrix, adapters) if adapters is not None and name in adapters.matrices else None


def put_matrix(
    part: nnx.Module, name: str, of: ParamSpec, std: float, rngs: nnx.Rngs, adapters: Adapters | None
) -> None:
    """Give a module a matrix of normal numbers, and its adapter if the model has one there."""
    matrix = weight(rngs, of, std)
    setattr(part, name, matrix)
    setattr(part, f"{name}_lora", low_rank(name, matrix, adapters))


def product(part: nnx.Module, name: str, x_BTX: Array, drop: Drop | None = None) -> Array:
    """Multiply by a module's matrix of this name, with its bias and its adapter where it has them."""
    bias, adapter = getattr(part, f"{name}_bias", None), getattr(part, f"{name}_lora", None)
    return project(x_BTX, getattr(part, name), bias, adapter, drop)


def project(
    x_BTX: Array,
    matrix: nnx.Param[Array],
    bias: nnx.Param[Array] | None = None,
    adapter: LowRank | None = None,
    drop: Drop | None = None,
) -> Array:
    """Multiply rows and tokens as one axis by the matrix [X, Y] (column-blocked on a sampling CPU).

    The gradient of the weight contracts over both axes, and with two axes XLA transposes the activations first (a
    quarter of a step on CPU). A sharded token axis cannot be merged, and a `SplitMatrix` wants both.
    """
    w = matrix[...].astype(x_BTX.dtype)
    read_BTX = None if drop is None or adapter is None else drop(adapter.name, x_BTX)
    if sharding.is_split("sequence") or isinstance(w, SplitMatrix):
        out = _multiply(x_BTX, w, adapter, read_BTX)
    else:
        B, T, X = x_BTX.shape
        read = None if read_BTX is None else read_BTX.reshape(B * T, X)
        out = _multiply(x_BTX.reshape(B * T, X), w, adapter, read).reshape(B, T, -1)
    return out if bias is None else out + bias[...].astype(x_BTX.dtype)


def _multiply(x: Array, w: Array, adapter: LowRank | None, read: Array | None) -> Array:
    """Return the product; read: the adapter's input after dropout."""
    out = decode_backend.product(x, w)
    return out if adapter is None else out + adapter(x if read is None else read)
