"""Rematerialisation: which arrays of a layer stay for the backward pass; it computes the others again."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from pttrainer.models.attention import flash_kernels
from pttrainer.models.shapes.structure import Remat

LayerFunction = Callable[[Array, Any], tuple[Array, Any]]
"""The body of a scan over layers: (x_BTD, of_layer) -> (x_BTD, the layer's result)."""

QKV, CONTEXT = "qkv", "context"
"""Names of queries, keys and values as attention reads them, and of the output of attention without a kernel."""

SAVED: dict[Remat, list[str]] = {
    "save-context": [CONTEXT, flash_kernels.KERNEL_OUT],
    "save-qkv-context": [QKV, CONTEXT, flash_kernels.KERNEL_OUT],
}


def rematerialised(layer: LayerFunction, remat: Remat) -> LayerFunction:
    """Return the layer with a policy of what it keeps.

    `full` keeps a layer's input only, the policies of `SAVED` the arrays of these names too. `none` keeps the results
    of its weights' products and of attention's kernel, and recomputes everything else: writing and reading those
    arrays costs more than computing them again (36% of a step on CPU).
    """
    policies = jax.checkpoint_policies
    policy = None if remat == "full" else policies.save_only_these_names(*SAVED.get(remat, [flash_kernels.KERNEL_OUT]))
    if policy is not None and remat == "none":
        policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, policy)
    return jax.checkpoint(layer, prevent_cse=False, policy=policy)
