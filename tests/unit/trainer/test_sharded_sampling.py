"""Sampling on a mesh: the tokens of one device."""

from __future__ import annotations

import dataclasses
from functools import cache, partial

import jax
import numpy as np
from tests.builders.models import CASES

from pttrainer import sharding
from pttrainer.models import Model, from_hf
from pttrainer.rollout.native import NativeEngine
from pttrainer.rollout.protocol import Completions, Draw, Prompt, Sampling
from pttrainer.session import put
from pttrainer.tokenizer import byte_tokenizer

PROMPTS = [Prompt([5, 9, 17, 3], 0), Prompt([77, 2], 1), Prompt([40, 41, 42, 43, 44], 2), Prompt([8], 3)]
SAMPLING = Sampling(12, 24)


@cache
def sampled(shape: tuple[int, ...], rows: int | None = None) -> Completions:
    config = dataclasses.replace(from_hf(CASES["qwen-3-moe"]), layers=1, vocab_size=264)
    assert config.experts is not None
    model = Model(dataclasses.replace(config, experts=dataclasses.replace(config.experts, count=8)))
    mesh = sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    with jax.set_mesh(mesh):
        weights = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
        params = jax.jit(model.init, out_shardings=weights)(jax.random.key(0))
        engine = NativeEngine(model, byte_tokenizer(), partial(put, mesh), jax.device_get, mesh, rows)
        return engine.generate(params, PROMPTS, 2, SAMPLING, Draw(7, 3))


def test_a_mixture_split_over_expert_and_fsdp_samples_the_tokens_of_one_device() -> None:
    alone, spread = sampled((1,)), sampled((1, 2, 1, 1, 4))
    assert [spread.tokens(row) for row in range(8)] == [alone.tokens(row) for row in range(8)]
    np.testing.assert_allclose(spread.logps_NT, alone.logps_NT, atol=1e-5)


def test_rows_over_two_devices_are_taken_over_with_the_tokens_of_one() -> None:
    alone, spread = sampled((1,)), sampled((2,), rows=4)
    assert [spread.tokens(row) for row in range(8)] == [alone.tokens(row) for row in range(8)]
    np.testing.assert_allclose(spread.logps_NT, alone.logps_NT, atol=1e-5)
