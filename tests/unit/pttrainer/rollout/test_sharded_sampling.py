"""Sampling on a mesh: the tokens of one device."""

import dataclasses
from functools import cache, partial

import jax
import numpy as np
import pytest
from tests.builders.peers.models import CASES
from tests.builders.trainer.preflight import spec

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.models import Model, from_hf
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native.decoding_weights import sampler_mesh
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
    mesh = sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    with jax.set_mesh(mesh):
        weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
        params = jax.jit(model.init, out_shardings=weights)(jax.random.key(0))
        samples = sampler_mesh(model, mesh, memory, None, None)
        assert (samples is mesh) == (memory is None)
        engine = NativeEngine(model, byte_tokenizer(), partial(put, samples), jax.device_get, samples, rows)
        return engine.generate(params, PROMPTS, 2, SAMPLING, Draw(7, 3))


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
