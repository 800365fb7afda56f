"""Rematerialisation: which arrays of a layer stay for the backward pass; it computes the others again."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from pttrainer.models.attention import flash_kernels
from pttrainer.models.shapes.structure import KEPT, Part, Remat
from pttrainer.runtime.distributed.sharding import chip

LayerFunction = Callable[[Array, Any], tuple[Array, Any]]
"""The body of a scan over layers: (x_BTD, of_layer) -> (x_BTD, the layer's result)."""

INPUT, QKV, CONTEXT = "input", "qkv", "context"
"""Names of a layer's input, of queries, keys and values as attention reads them, and of the output of attention without
a kernel."""

NAMES: dict[Part, tuple[str, ...]] = {
    "input": (INPUT,), "qkv": (QKV,), "context": (CONTEXT, flash_kernels.KERNEL_OUT)
}  # fmt: skip


def rematerialised(layer: LayerFunction, remat: Remat, *, is_alone: bool = True) -> LayerFunction:
    """Return the layer with a policy of what it keeps.

    `full` keeps a layer's input only, the policies of `KEPT` the arrays of these parts too, on the device or in its
    host's memory. `none` keeps the results of its weights' products and of attention's kernel, and recomputes
    everything else: writing and reading those arrays costs more than computing them again (36% of a step on CPU).

    is_alone: the scan's body is this layer alone. Of several layers a TPU's compiler would compute many again at once,
    where memory is free or not; a barrier holds a layer's input until the gradient of its output is there. Weights go
    around it, so that they are gathered meanwhile.
    """
    policies = jax.checkpoint_policies
    if remat == "none":
        kernel = policies.save_only_these_names(flash_kernels.KERNEL_OUT)
        policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, kernel)
    elif KEPT[remat].host:
        layer = _with_named_input(layer)
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=_names(KEPT[remat].device),
            names_which_can_be_offloaded=_names(KEPT[remat].host),
            offload_src="device",
            offload_dst="pinned_host",
        )
    else:
        names = _names(KEPT[remat].device)
        policy = policies.save_only_these_names(*names) if names else None
    is_held = not is_alone and chip()[0] == "tpu"
    return jax.checkpoint(layer, prevent_cse=(True, False) if is_held else False, policy=policy)


def _with_named_input(layer: LayerFunction) -> LayerFunction:
    """Return the layer with a name for its input, so that a policy may send it to the host."""
    return lambda x_BTD, of_layer: layer(checkpoint_name(x_BTD, INPUT), of_layer)


def _names(parts: Iterable[Part]) -> list[str]:
    return [name for part in parts for name in NAMES[part]]
