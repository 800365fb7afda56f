"""A sampler whose matrices are in parts, as on v5p and tpu7x, samples the tokens of one that has them whole."""

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, Params, preset
from pttrainer.models.decoding.cut_matrix import FEW_TOKENS, Cut, CutMatrix, cut
from pttrainer.rollout.engine import Draw, Prompt, Sampling
from pttrainer.rollout.native import decoding_weights
from pttrainer.rollout.native.decoding_weights import (
    DecodingWeights,
    cut_weights,
    decoding_shapes,
    decoding_shardings,
)
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.runtime.distributed import sharding

MESH = (1, 2, 2)
PROMPTS = [Prompt([256, *range(20, 20 + FEW_TOKENS + 8)], 0), Prompt([256, *b"a short one"], 1)]
CPU = ""
"""The generation of chips that are in no table."""


@cache
def model() -> Model:
    config = dataclasses.replace(preset("tiny"), d_model=256, d_ff=1024, layers=2, vocab_size=264)
    return Model(config)


@cache
def params() -> Params:
    fresh = jax.jit(model().init)(jax.random.key(3))
    return {**fresh, "embedding": fresh["embedding"] * 8.0}


def mesh() -> jax.sharding.Mesh:
    return sharding.make_mesh(MESH, jax.devices()[:4])


def sampled() -> tuple[list[list[int]], np.ndarray[Any, Any]]:
    engine = NativeEngine(model(), byte_tokenizer(), partial(sharding.put, mesh()), jax.device_get, mesh())
    with jax.set_mesh(mesh()):
        done = engine.generate(params(), PROMPTS, 2, Sampling(24, 96), Draw(7, 3))
    return [done.tokens(row) for row in range(4)], done.logps_NT


def test_samples_are_those_of_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is computed with whole matrices, joined from their parts; tokens are with the parts."""
    whole_tokens, whole_logps = sampled()
    monkeypatch.setitem(decoding_weights.PART_BYTES, CPU, 2**18)
    made = DecodingWeights(model(), mesh())(params())
    kinds = [{name: type(matrix) for name, matrix in layer["mlp"].items()} for layer in made["layers"]]
    assert kinds == [{"gate": CutMatrix, "up": CutMatrix, "down": CutMatrix}] * 2
    tokens, logps = sampled()
    assert tokens == whole_tokens
    np.testing.assert_allclose(logps, whole_logps, atol=1e-5)


def test_parts_are_columns_of_the_device_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decoding_weights.PART_BYTES, CPU, 2**18)
    before = DecodingWeights(model(), None)(params())["layers"][0]["mlp"]
    after = DecodingWeights(model(), mesh())(params())["layers"][0]["mlp"]
    assert [len(after[name].parts) for name in ("gate", "up", "down")] == [2, 2, 2]
    assert [after[name].devices for name in ("gate", "up", "down")] == [2, 2, 1]
    for name, matrix in after.items():
        for part in matrix.parts:
            for shard in part.addressable_shards:  # each holds columns of the shard that its device had of the whole
                whole = np.asarray(before[name])[shard.index[0]]
                at = sharding_columns(matrix, shard, whole.shape[1])
                columns = {column.tobytes() for column in whole[:, at].T}
                assert all(column.tobytes() in columns for column in np.asarray(shard.data).T)


def sharding_columns(matrix: CutMatrix, shard: Any, columns: int) -> slice:
    """The columns of the whole matrix that a device has."""
    each = columns // matrix.devices
    start, _, _ = shard.index[1].indices(columns // len(matrix.parts))
    first = start * len(matrix.parts)
    return slice(first, first + each)


@pytest.mark.parametrize(("parts", "devices"), [(2, 1), (4, 2)])
def test_a_product_with_parts_is_that_with_the_matrix(parts: int, devices: int) -> None:
    x_NX, w_XY = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(((5, 16), (16, 32))))
    matrix = cut(w_XY, Cut(parts, devices))
    np.testing.assert_array_equal(matrix.whole(jnp.array(False)), w_XY)
    np.testing.assert_allclose(x_NX @ matrix, x_NX @ w_XY, atol=1e-6)


def test_what_a_verdict_compiles_are_the_shapes_that_the_sampler_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decoding_weights.PART_BYTES, CPU, 2**18)
    where = decoding_shardings(model(), mesh())
    shapes = jax.tree.map(
        lambda x, of: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=of), dict(decoding_shapes(model())), where
    )
    foreseen, made = cut_weights(shapes), DecodingWeights(model(), mesh())(params())
    assert jax.tree.structure(foreseen) == jax.tree.structure(made)
    assert len(made["layers"][0]["mlp"]["gate"].parts) == 2
    for shape, array in zip(jax.tree.leaves(foreseen), jax.tree.leaves(made), strict=True):
        assert (shape.shape, shape.dtype) == (array.shape, array.dtype)
        assert shape.sharding.is_equivalent_to(array.sharding, array.ndim)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_quantised_matrix_is_in_no_parts(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decoding_weights.PART_BYTES, CPU, 2**12)
    quantised = dataclasses.replace(model(), quantization=kind)
    shapes, where = decoding_shapes(quantised)["layers"][0], decoding_shardings(quantised, mesh())["layers"][0]
    assert decoding_weights.layer_cuts(shapes, where) == {}
    assert len(DecodingWeights(quantised, mesh()).layers) == 1


def test_matrices_are_whole_on_chips_of_which_nothing_is_known() -> None:
    made = DecodingWeights(model(), mesh())(params())
    assert all(matrix.ndim == 2 and not isinstance(matrix, CutMatrix) for matrix in made["layers"][0]["mlp"].values())
