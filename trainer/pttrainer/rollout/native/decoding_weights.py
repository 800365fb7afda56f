"""A sampler's weights: which mesh holds them, where, and how trained weights become them.

They are gathered once per rollout: else every token would gather every layer again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding

from ptapi.accelerators import Slice
from pttrainer.models import Model, Params
from pttrainer.models.attention.splash_blocks import GENERATIONS
from pttrainer.models.decoding import decode_backend
from pttrainer.models.decoding.cut_matrix import CUT, Cut, Cuts, cut, cut_shape, in_layer, same_for_parts
from pttrainer.models.shapes.parameters import Axes, decoding_axes
from pttrainer.rollout.native.sizes.sampler_shape import sampler_shape
from pttrainer.rollout.native.sizes.sampling_time import Rollout
from pttrainer.runtime.distributed import logical_axes, sharding
from pttrainer.runtime.tpu_tiles import LANES

PART_BYTES = {"v5p": 16 * 2**20, "tpu7x": 8 * 2**20}
"""The largest part of a matrix of a feed-forward part on a device, in bytes; elsewhere they are whole (`cut_matrix`).

So large that a product of one is still much longer than it takes to begin. The others' cores have twice the
memory, and whole matrices come ahead of time."""

Call = Callable[..., Any]
"""What calls a jitted function with its arguments: `called`, or a compiler, which returns the shapes of its results."""


def called(function: Any, *arguments: Any) -> Any:
    """Call the function."""
    return function(*arguments)


class DecodingWeights:
    """Convert trained weights to the sampler's format (`Model.for_decoding`), a part at a time.

    A program with gathered results keeps each of them twice until it ends, which for all of them together exceeded
    a chip's memory. On one CPU they become what its kernels read (`models.decoding.decode_backend`); on TPUs large
    matrices may be cut (`models.decoding.cut_matrix`).
    """

    def __init__(self, model: Model, mesh: Mesh | None) -> None:
        where = None if mesh is None else decoding_shardings(model, mesh)
        cuts_of = {} if where is None else group_cuts(model, where)
        self._model = model
        self.layers = {}
        for group in model.config.groups:
            cuts, layer = cuts_of.get(group.name, {}), None
            if where is not None:
                layer = in_layer(where["layers"][group.numbers[0]], cuts, same_for_parts)
            of_layer = _cutting(model, tuple(cuts.items())) if cuts else model.layer_for_decoding
            self.layers[group.name] = jax.jit(of_layer, out_shardings=layer)
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


@lru_cache(maxsize=16)
def _cutting(model: Model, cuts: tuple[tuple[str, Cut], ...]) -> Any:
    return lambda layers, i: in_layer(model.layer_for_decoding(layers, i), dict(cuts), cut)


def group_cuts(model: Model, where: Any) -> dict[str, Cuts]:
    """Return how the matrices of each group's layers are cut. where: `decoding_shardings`."""
    shapes = decoding_shapes(model)["layers"]
    first = {group.name: group.numbers[0] for group in model.config.groups}
    return {name: layer_cuts(shapes[i], where["layers"][i]) for name, i in first.items()}


def layer_cuts(shapes: Params, where: Any) -> Cuts:
    """Return how the matrices of a layer are cut on the chips that they are for. where: their shardings."""
    cuts: dict[str, Cut] = {}
    for name in CUT:
        matrix, place = shapes["mlp"].get(name), where["mlp"].get(name)
        if getattr(matrix, "ndim", 0) != 2:  # absent, of experts, or quantised, which is a dict of arrays
            continue
        if not isinstance(place.mesh, Mesh):  # an abstract mesh has no devices
            continue
        rows, columns = place.shard_shape(matrix.shape)
        most = PART_BYTES.get(GENERATIONS.get(place.mesh.devices.flat[0].device_kind, ""), math.inf)
        tiles, bytes_ = columns // LANES, rows * columns * matrix.dtype.itemsize
        fitting = (parts for parts in range(1, tiles + 1) if tiles % parts == 0 and bytes_ <= most * parts)
        parts = next(fitting, 1) if columns % LANES == 0 else 1
        if parts > 1:
            cuts[name] = Cut(parts, matrix.shape[1] // columns)
    return cuts


def cut_weights(weights: Params) -> Params:
    """Return the shapes of weights in the sampler's format, with their shardings, as `DecodingWeights` makes them."""

    def of_layer(layer: Params) -> Params:
        return in_layer(layer, layer_cuts(layer, jax.tree.map(lambda x: x.sharding, layer)), cut_shape)

    return {**weights, "layers": tuple(map(of_layer, weights["layers"]))}


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
            return decoding_axes(of_weight[without_layer:], is_quantised=model.quantization is not None)

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
