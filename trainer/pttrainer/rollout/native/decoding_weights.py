"""A sampler's weights: which mesh holds them, where, and how trained weights become them.

They are gathered once per rollout: else every token would gather every layer again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding

from ptapi.accelerators import Slice
from pttrainer.models import Model, Params
from pttrainer.models.decoding import decode_backend
from pttrainer.models.shapes.parameters import Axes, decoding_axes
from pttrainer.rollout.native.sizes.sampler_shape import sampler_shape
from pttrainer.rollout.native.sizes.sampling_time import Rollout
from pttrainer.runtime.distributed import logical_axes, sharding

Call = Callable[..., Any]
"""What calls a jitted function with its arguments: `called`, or a compiler, which returns the shapes of its results."""


def called(function: Any, *arguments: Any) -> Any:
    """Call the function."""
    return function(*arguments)


class DecodingWeights:
    """Convert trained weights to the sampler's format (`Model.for_decoding`), a part at a time.

    A program with gathered results keeps each of them twice until it ends, which for all of them together exceeded
    a chip's memory. On one CPU they become what its kernels read (`models.decoding.decode_backend`).
    """

    def __init__(self, model: Model, mesh: Mesh | None) -> None:
        where = None if mesh is None else decoding_shardings(model, mesh)
        self._model = model
        self.layers = {
            group.name: jax.jit(model.layer_for_decoding, out_shardings=where and where["layers"][group.numbers[0]])
            for group in model.config.groups
        }
        self.parts = {
            name: jax.jit(model.part_for_decoding, out_shardings=where and {name: where[name]})
            for name in decoding_shapes(model)
            if name != "layers"
        }

    def __call__(self, params: Params, call: Call = called) -> Params:
        """Return the weights where `decode` reads them. call: calls the functions."""
        kernels = decode_backend.kernels_for(params)
        of_kernels = None if kernels is None else _layer_for_kernels(self._model, kernels)
        layers = tuple(
            call(of_kernels or self.layers[group.name], params[group.name], np.int32(i))
            for group, i in self._model.config.layer_places
        )
        parts = (call(part, {name: params[name]}) for name, part in self.parts.items())
        weights = {"layers": layers, **{name: value for part in parts for name, value in part.items()}}
        head = None if kernels is None else call(_head_for_kernels(self._model, kernels), weights)
        return weights if head is None else {**weights, decode_backend.HEAD_BLOCKS: head}


def for_kernels(model: Model, weights: Params) -> Params:
    """Return weights in the sampler's format as the kernels of one CPU read them; elsewhere, as they are."""
    kernels = decode_backend.kernels_for(weights)
    if kernels is None:
        return weights
    head = _head_for_kernels(model, kernels)(weights)
    laid_out = {**weights, "layers": tuple(map(_laid_out_for_kernels(kernels), weights["layers"]))}
    return laid_out if head is None else {**laid_out, decode_backend.HEAD_BLOCKS: head}


@lru_cache(maxsize=16)
def _laid_out_for_kernels(kernels: decode_backend.CpuKernels) -> Any:
    return jax.jit(kernels.layer_weights)


@lru_cache(maxsize=16)
def _layer_for_kernels(model: Model, kernels: decode_backend.CpuKernels) -> Any:
    return jax.jit(lambda layers, i: kernels.layer_weights(model.layer_for_decoding(layers, i)))


@lru_cache(maxsize=16)
def _head_for_kernels(model: Model, kernels: decode_backend.CpuKernels) -> Any:
    return jax.jit(lambda weights: kernels.head_blocks(model.head(weights)))


@lru_cache(maxsize=16)
def decoding_shapes(model: Model) -> Params:
    """Return the shapes of `for_decoding`'s weights."""
    shapes: Params = jax.eval_shape(model.for_decoding, model.abstract())
    return shapes


def sampler_mesh(model: Model, mesh: Mesh, memory: int | None, chips: Slice | None, rollout: Rollout | None) -> Mesh:
    """Return the mesh that samples, on the devices of the training mesh (`sampler_shape`)."""
    data, fsdp, tensor, sequence, expert = (mesh.shape[axis] for axis in logical_axes.MESH_AXES)
    return reshaped(mesh, sampler_shape(model, (data, fsdp, tensor, sequence, expert), memory, chips, rollout))


def reshaped(mesh: Mesh, shape: logical_axes.Shape) -> Mesh:
    """Return the mesh's devices in the same order, so one program can read from one mesh and write to the other."""
    return mesh if mesh.devices.shape == shape else Mesh(mesh.devices.reshape(shape), logical_axes.MESH_AXES)


def decoding_shardings(model: Model, mesh: Mesh) -> Any:
    """Return where `for_decoding`'s weights are: not split over `fsdp`, and on TPUs in the order that is read."""
    axes, shapes = model.logical_axes(), dict(decoding_shapes(model))

    def without_fsdp(axes: Any, *, without_layer: bool) -> Any:
        def one(of_weight: Axes) -> Axes:
            return decoding_axes(of_weight[without_layer:])

        return jax.tree.map(one, axes, is_leaf=lambda x: isinstance(x, tuple))

    of_layers, by_group = shapes.pop("layers"), {}
    for group in model.config.groups:
        names = without_fsdp(axes.pop(group.name), without_layer=True)
        layer = sharding.weight_shardings(mesh, of_layers[group.numbers[0]], names)
        if isinstance(mesh, Mesh) and mesh.devices.flat[0].platform == "tpu":  # an abstract mesh has no devices
            layer = {**layer, "attention": _transposed(layer["attention"])}
        by_group[group.name] = layer
    layers = tuple(by_group[group.name] for group, _ in model.config.layer_places)
    return {**sharding.weight_shardings(mesh, shapes, without_fsdp(axes, without_layer=False)), "layers": layers}


def _transposed(attention: dict[str, Any]) -> dict[str, Any]:
    """Store q, k and v by columns, as the TPU's loop over tokens reads them: otherwise it would copy them first."""
    return {
        name: Format(Layout((1, 0)), where) if name in ("q", "k", "v") and isinstance(where, NamedSharding) else where
        for name, where in attention.items()
    }
