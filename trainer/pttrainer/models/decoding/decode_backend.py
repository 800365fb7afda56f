"""Chooses how a sampler computes products and attention: with JAX or, on one CPU, with the kernels of `cpu_kernels`.

Without that folder, without llvmlite and on other processors JAX computes
everything; samples agree up to rounding. The choice is made where weights come to the sampler (`kernels_for`): a tree
of weights for the kernels has its head in column blocks (`HEAD_BLOCKS`), and some of its matrices have three axes.

Letters: B rows, D model, V vocabulary; M, K, N as in `cpu_kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models.attention.dot_product import Scoring, Slots, attend_cached, attend_shared
from pttrainer.models.decoding.cut_matrix import CutMatrix
from pttrainer.models.shapes.structure import Params
from pttrainer.runtime import cpu_products, host_code

if TYPE_CHECKING:
    from pttrainer.models.decoding.column_blocks import CpuKernels as CpuKernels  # the samplers' annotations need it

HEAD_BLOCKS = "head_blocks"
"""Key in a tree of weights, beside the head itself, which also serves as the embedding table."""


def host_kernels() -> CpuKernels | None:
    """Return the kernels for this machine's processor, if there are any."""
    tile = host_code.tile()
    if tile is None:
        return None
    from pttrainer.models.decoding.column_blocks import CpuKernels

    return CpuKernels(tile)


def kernels_for(weights: Params) -> CpuKernels | None:
    """Return the kernels for weights on one CPU, else None. weights: arrays, or shapes with shardings.

    A column-blocked product cannot be sharded, and shapes without shardings are on no device yet.
    """
    shardings = [getattr(x, "sharding", None) for x in jax.tree.leaves(weights)]
    if None in shardings:
        return None
    devices = {device for where in shardings if where is not None for device in where.device_set}
    is_one_cpu = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    return host_kernels() if is_one_cpu else None


def product(x_MK: Array, w: Array | CutMatrix) -> Array:
    """Multiply by a matrix [K, N], by its parts, or by its column blocks."""
    if isinstance(w, CutMatrix):
        return x_MK @ w
    return cpu_products.product(x_MK, w) if w.ndim == 2 else _required().product(x_MK, w)


def logits(weights: Params, head_VD: Array, hidden_BD: Array) -> Array:
    """Return logits [B, V], float32, before a soft cap.

    JAX computes head · hidden: on a CPU up to twice as fast as hidden · head for a few rows.
    """
    if HEAD_BLOCKS in weights:
        return _required().product(hidden_BD, weights[HEAD_BLOCKS])[:, : head_VD.shape[0]]
    logits_VB = jnp.einsum("vd,bd->vb", head_VD, hidden_BD, preferred_element_type=jnp.float32)
    logits_BV: Array = jax.lax.optimization_barrier(logits_VB).T
    return logits_BV


def attend(q_BTNH: Array, own: Slots, prompt: Slots | None, scoring: Scoring, *, use_kernels: bool) -> Array:
    """Attend over a row's own slots and, if it shares a prompt, the prompt's; the result is [B, T, N, H]."""
    kernels = _required() if use_kernels else None
    if kernels is not None and kernels.can_attend(q_BTNH, own, prompt, scoring):
        return kernels.attend(q_BTNH, own, prompt, scoring)
    if prompt is None:
        return attend_cached(q_BTNH, *own, scoring)
    return attend_shared(q_BTNH, *own, *prompt, scoring)


def _required() -> CpuKernels:
    kernels = host_kernels()
    assert kernels is not None, "weights in column blocks, which only the CPU kernels read"
    return kernels
