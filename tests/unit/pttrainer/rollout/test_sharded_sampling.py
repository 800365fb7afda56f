"""Sampling on a mesh: the tokens of one device."""

import dataclasses
import re
from functools import cache, partial

import jax
import numpy as np
import pytest
from tests.builders.peers.models import CASES
from tests.builders.trainer.preflight import spec

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, from_hf
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.decoding.cut_matrix import FEW_TOKENS
from pttrainer.models.shapes.structure import Params
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native import buckets, cache_layout
from pttrainer.rollout.native.decoding_weights import decoding_shapes, decoding_shardings, sampler_mesh
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.native.sizes.sampler_shape import sampler_shape
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put

PROMPTS = [Prompt([5, 9, 17, 3], 0), Prompt([77, 2], 1), Prompt([40, 41, 42, 43, 44], 2), Prompt([8], 3)]
SAMPLING = Sampling(12, 24)


@cache
def sampled(shape: tuple[int, ...], rows: int | None = None, memory: int | None = None) -> Completions:
    config = dataclasses.replace(from_hf(CASES["qwen-3-moe"]), layers=1, vocab_size=264)
    assert config.experts is not None
    model = Model(dataclasses.replace(config, experts=dataclasses.replace(config.experts, count=8)))
    return two_samples(model, shape, PROMPTS, rows, memory)


def two_samples(
    model: Model, shape: tuple[int, ...], prompts: list[Prompt], rows: int | None, memory: int | None = None
) -> Completions:
    mesh = sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    with jax.set_mesh(mesh):
        weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
        params = jax.jit(model.init, out_shardings=weights)(jax.random.key(0))
        samples = sampler_mesh(model, mesh, memory, None, None)
        assert (samples is mesh) == (memory is None)
        engine = NativeEngine(model, byte_tokenizer(), partial(put, samples), jax.device_get, samples, rows)
        return engine.generate(params, prompts, 2, SAMPLING, Draw(7, 3))


def test_a_mixture_split_over_expert_and_fsdp_samples_the_tokens_of_one_device() -> None:
    alone, spread = sampled((1,)), sampled((1, 2, 1, 1, 4))
    assert [spread.tokens(row) for row in range(8)] == [alone.tokens(row) for row in range(8)]
    np.testing.assert_allclose(spread.logps_NT, alone.logps_NT, atol=1e-5)


def test_rows_over_two_devices_are_taken_over_with_the_tokens_of_one() -> None:
    alone, spread = sampled((1,)), sampled((2,), rows=4)
    assert [spread.tokens(row) for row in range(8)] == [alone.tokens(row) for row in range(8)]
    np.testing.assert_allclose(spread.logps_NT, alone.logps_NT, atol=1e-5)


def test_chips_that_cannot_hold_the_weights_split_matrices_to_sample_and_sample_the_tokens_of_one() -> None:
    alone, spread = sampled((1,)), sampled((1, 4), memory=1)
    assert [spread.tokens(row) for row in range(8)] == [alone.tokens(row) for row in range(8)]
    np.testing.assert_allclose(spread.logps_NT, alone.logps_NT, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "shape", "rows"),
    [
        pytest.param("deepseek-v3-dense", (1, 1, 6), None, id="rows that six devices do not divide"),
        pytest.param("deepseek-v3", (1, 2, 2), 5, id="latents, and rows that take over others"),
        pytest.param("deepseek-v3.2", (1, 1, 2), None, id="latents of which an indexer chooses"),
        pytest.param("llama-biases-mqa", (1, 4, 2), None, id="a device for each row"),
        pytest.param("gemma-4-small", (1, 1, 2), None, id="layers that borrow"),
    ],
)
def test_key_heads_that_tensor_does_not_divide(family: str, shape: tuple[int, ...], rows: int | None) -> None:
    """One of the prompts is long enough for devices to divide its queries."""
    model = Model(dataclasses.replace(from_hf(CASES[family]), vocab_size=264))
    prompts = [Prompt([*range(40, 40 + 2 * FEW_TOKENS)], 0), *PROMPTS[1:]]
    alone, spread = (two_samples(model, each, prompts, rows) for each in ((1,), shape))
    assert [spread.tokens(row) for row in range(8)] == [alone.tokens(row) for row in range(8)]
    np.testing.assert_allclose(spread.logps_NT, alone.logps_NT, atol=1e-5)


@pytest.mark.parametrize("family", ["olmo-3", "gemma-2"], ids=["a head of its own", "a tied and capped one"])
def test_a_vocabulary_that_tensor_does_not_divide(family: str) -> None:
    model = Model(dataclasses.replace(from_hf(CASES[family]), vocab_size=263))
    alone, spread = (two_samples(model, shape, PROMPTS, None) for shape in ((1,), (1, 2, 4)))
    assert [spread.tokens(row) for row in range(8)] == [alone.tokens(row) for row in range(8)]
    np.testing.assert_allclose(spread.logps_NT, alone.logps_NT, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "layer"),
    [("deepseek-v3-dense", "2,1,24,88"), ("gemma-4", "2,1,16,88")],
    ids=["latents", "layers with fewer key heads"],
)
def test_devices_store_rows_of_their_own_and_send_no_keys(family: str, layer: str) -> None:
    """Of 88 slots of a row's own, and 68 of its prompt; two of eight rows for each of four devices."""
    model, mesh = Model(from_hf(CASES[family])), sharding.make_mesh((1, 2, 2), jax.devices()[:4])
    where = decoding_shardings(model, mesh)
    weights = jax.tree.map(
        lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), decoding_shapes(model), where
    )
    rows = jax.ShapeDtypeStruct((8, 1), "int32", sharding=sharding.batch_sharding(mesh, (8, 1)))

    def token(weights: Params, tokens_B1: jax.Array) -> jax.Array:
        prompts = kv.empty(model.config, 4, 68, model.compute_dtype)
        cache = cache_layout.with_shardings(cache_layout.shared(model, prompts, 2, 88))
        decode = lambda _, cache: model.decode(weights, tokens_B1, tokens_B1, cache)[1]  # noqa: E731
        return jax.lax.fori_loop(0, 9, decode, cache).layers[-1].k_BKHS

    with jax.set_mesh(mesh):
        text = jax.jit(token).lower(weights, rows).compile().as_text()
    assert f"f32[{layer}]" in text
    gathered = re.findall(r"= \(?\w+\[([\d,]+)\]\S* all-gather", text)
    assert not [shape for shape in gathered if {"88", "68"} & set(shape.split(","))]


@pytest.mark.parametrize(
    ("memory", "shape"),
    [
        (None, (1, 64, 1, 1, 1)),  # a CPU does not say
        (400, (1, 64, 1, 1, 1)),
        (200, (1, 32, 2, 1, 1)),  # 131 GiB of a 70B model in halves, 65.5, are 0.33 of 200
        (96, (1, 16, 4, 1, 1)),
        (16, (1, 8, 8, 1, 1)),  # no further: there are 8 key heads
    ],
)
def test_tensor_takes_of_fsdp_what_the_samplers_weights_need(memory: int | None, shape: tuple[int, ...]) -> None:
    model = shapes_of(spec("llama3.1-70b", "v5p-128", algorithm="grpo")).structure
    limit = None if memory is None else memory * 2**30
    assert sampler_shape(model, (1, 64, 1, 1, 1), limit, None, None) == shape
    assert sampler_shape(model, (1, 3, 1, 1, 1), limit, None, None) == (1, 3, 1, 1, 1)


def test_rows_are_as_many_on_each_device_that_has_its_own() -> None:
    names = "deepseek-v3", "qwen3-8b"
    latents, heads = (shapes_of(spec(name, "v5p-64", algorithm="grpo")).structure for name in names)
    assert buckets.even_rows(latents, 100, 2, 8) == 96
    assert buckets.even_rows(heads, 100, 2, 8) == 100
    assert buckets.even_rows(latents, 15, 2, 8) == 14  # fewer than devices: each part of the rows has as many
    bytes_ = buckets.token_bytes(latents)
    assert buckets.token_bytes(latents, tensor=8) == bytes_
    assert buckets.token_bytes(latents, tensor=8, spread=True) == bytes_ / 8
