"""A mixture of experts over a mesh: every device computes its own experts for the tokens of its group.

Letters: B rows, T tokens, D model, k experts per token, E experts of all devices.

By default the compiler would copy all tokens and all experts to every device, because it cannot split a sort. So this
part assigns the work explicitly. Tokens stay with their rows; the devices along the `expert` axis gather each other's
tokens, each selects those that chose one of its own experts, and the results are summed back to the rows' owners. No
token is dropped and no buffer is larger than the gathered tokens. A matrix's model axis is gathered over `fsdp` for the
product, as in every layer; its feed-forward axis stays split over `tensor`. Where parts fill rows of a TPU's tiles they
are gathered here: the compiler would copy whole experts that it gathers, and sum the gradients of parts of experts on
every device unless the experts are a multiple of the devices.

Left out: sending a token only to the devices of its experts (all-to-all). With as many experts per token as devices on
the axis it moves as much, and needs buffers for the worst case to drop nothing.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from pttrainer.runtime.distributed import logical_axes, sharding

GATHERED_OVER = logical_axes.mesh_axes("expert_embed")
"""Mesh axes that split experts' matrices along the model's axis, or in whole experts."""
Matrices = Mapping[str, Array]
Mixture = Callable[[Array, Array, Array, Matrices], Array]
"""(x_MD, expert_Mk, weight_Mk, matrices) -> out_MD, for the experts that the matrices hold; experts of other numbers
than theirs, which are counted from 0, add nothing."""


def over_mesh(
    mixture: Mixture,
    x_BTD: Array,
    expert_BTk: Array,
    weight_BTk: Array,
    matrices: Matrices,
    gathered: Mapping[str, int] = MappingProxyType({}),
    *,
    over: tuple[str, ...] = ("expert",),
) -> Array:
    """Apply `mixture` to all experts, over the mesh in context.

    `matrices` are [E, …], the feed-forward axis of `down` and `down_bias` first or absent, of all others last.
    gathered: the axis of those that are gathered here, which `GATHERED_OVER` splits: 0 if devices hold whole experts.
    over: mesh axes whose devices have experts of their own: `expert`, and of a sampler `tensor`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    rows = sharding.fitting_batch_spec(mesh, x_BTD.shape[:2])
    experts = matrices["down"].shape[0]
    is_split = mesh.shape["expert"] > 1
    gathers_rows = is_split and rows[0] is not None
    d_ff = matrices["down"].shape[1]
    owners = logical_axes.pieces(mesh.shape, over)
    inner = "tensor" if "tensor" not in over and mesh.shape["tensor"] > 1 and d_ff % mesh.shape["tensor"] == 0 else None

    def local(x_BTD: Array, expert_BTk: Array, weight_BTk: Array, own: Matrices) -> Array:
        if gathers_rows:
            x_BTD, expert_BTk, weight_BTk = (
                lax.all_gather(x, "expert", axis=0, tiled=True) for x in (x_BTD, expert_BTk, weight_BTk)
            )
        B, T, D = x_BTD.shape
        k = expert_BTk.shape[-1]
        if owners > 1:
            expert_BTk = expert_BTk - lax.axis_index(over) * (experts // owners)
        whole = {
            name: lax.all_gather(own[name].astype(x_BTD.dtype), GATHERED_OVER, axis=axis, tiled=True)
            for name, axis in gathered.items()
        }
        inputs = x_BTD.reshape(B * T, D), expert_BTk.reshape(-1), weight_BTk.reshape(B * T, k)
        if inner is not None and "down_bias" in own:  # or each device's would be in the sum
            own = {**own, "down_bias": jnp.where(lax.axis_index(inner) == 0, own["down_bias"], 0)}
        out_MD = mixture(*inputs, {**own, **whole})
        out_BTD = out_MD.reshape(B, T, D)
        if inner is not None or "tensor" in over:
            out_BTD = lax.psum(out_BTD, "tensor")
        if gathers_rows:
            scattered: Array = lax.psum_scatter(out_BTD, "expert", scatter_dimension=0, tiled=True)
            return scattered
        return lax.psum(out_BTD, "expert") if is_split else out_BTD

    where = {name: PartitionSpec(over, *_spec(name, matrix, inner)) for name, matrix in matrices.items()}
    for name, axis in gathered.items():
        split = list(where[name])
        split[axis] = ("expert", *GATHERED_OVER) if axis == 0 else GATHERED_OVER
        where[name] = PartitionSpec(*split)
    by_token = PartitionSpec(*rows, None)
    body: Any = jax.shard_map(local, in_specs=(by_token, by_token, by_token, where), out_specs=by_token)
    out: Array = body(x_BTD, expert_BTk, weight_BTk, dict(matrices))
    return out


def _spec(name: str, matrix: Array, inner: str | None) -> tuple[str | None, ...]:
    """Return the mesh axis that splits each axis of a matrix or bias but the experts'."""
    if name in ("down_bias", "gate.a", "up.a", "down.b"):  # of adapters: the model's axis and the rank
        return (None,) * (matrix.ndim - 1)
    return (inner, None) if name in ("down", "down.a") else (*(None,) * (matrix.ndim - 2), inner)
