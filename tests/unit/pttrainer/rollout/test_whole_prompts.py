"""Whole prompts by the kernel of training, as on TPUs: the keys, values and states of the plain computation."""

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.peers.models import CASES
from tests.builders.trainer.preflight import spec

from pttrainer.models import Model, from_hf
from pttrainer.models.attention import flash_kernels
from pttrainer.models.attention.flash_kernels import Problem
from pttrainer.preflight.shapes.job_shapes import shapes_of
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.decoding_weights import decoding_shardings
from pttrainer.rollout.native.prefill import PaddedPrompts, Prefilled, prefill_prompts
from pttrainer.runtime.distributed import sharding

LENGTHS = np.array([5, 24, 1, 13], np.int32)


def prefilled(model: Model, shape: tuple[int, ...]) -> Prefilled:
    tokens_PS = np.random.default_rng(3).integers(0, 200, (4, 24)).astype(np.int32)
    mesh = sharding.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    with jax.set_mesh(mesh):
        weights = jax.jit(
            lambda key: model.for_decoding(model.init(key)), out_shardings=decoding_shardings(model, mesh)
        )(jax.random.key(0))
        padded = jax.device_put(
            PaddedPrompts(tokens_PS, LENGTHS, None, None), jax.NamedSharding(mesh, sharding.spec_of(("batch",)))
        )
        return jax.device_get(jax.jit(partial(prefill_prompts, model))(weights, padded))


SUMMED, GATHERED = {(2, 24, 2, 2)}, {(4, 24, 4, 1)}
"""Prompts at once and their length, and how the mesh splits prompts and heads."""


@pytest.mark.parametrize(
    ("family", "share", "expected"),
    [
        ("gemma-2", 1e9, SUMMED),  # windows and soft caps
        ("gemma-2", 0, GATHERED),
        ("qwen-2.5", 0, GATHERED),  # biases
        ("gpt-oss", 0, SUMMED),  # windows, sinks and experts
    ],
)
def test_whole_prompts_on_two_parts_of_the_rows_are_those_of_one_device(
    family: str, share: float, expected: set[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(dataclasses.replace(from_hf(CASES[family]), vocab_size=264))
    assert model.config.is_pageable
    plain = prefilled(model, (1,))
    problems: list[Problem] = []

    def chosen(problem: Problem) -> str:
        problems.append(problem)
        return "splash"

    monkeypatch.setattr(flash_kernels, "choose_kernel", chosen)
    monkeypatch.setattr(flash_kernels, "attend", partial(flash_kernels.attend, interpret=True))
    monkeypatch.setattr(buckets, "WHOLE_TOKENS", 24)
    monkeypatch.setattr(buckets, "GATHERED_SHARE", share)
    whole = prefilled(model, (1, 2, 2))
    assert {(each.rows, each.length, each.row_shards, each.head_shards) for each in problems} == expected
    np.testing.assert_allclose(whole.hidden_PD, plain.hidden_PD, atol=2e-5)
    np.testing.assert_array_equal(whole.cache.positions_BS, plain.cache.positions_BS)
    assert whole.cache.index == plain.cache.index == 24
    for ours, theirs in zip(_filled(whole), _filled(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def _filled(done: Prefilled) -> list[Any]:
    """Return keys and values of the prompts' own tokens, by layer."""
    is_own_PS = done.cache.positions_BS >= 0
    return [
        (np.moveaxis(layer.k_BKHS, 3, 1)[is_own_PS], np.moveaxis(layer.v_BKSH, 2, 1)[is_own_PS])
        for layer in done.cache.layers
    ]


def test_as_many_whole_prompts_of_each_part_of_the_rows_are_computed_as_tokens_fit() -> None:
    assert buckets.whole_prompts(16, 1024, 4) == 16  # 4,096 tokens in each part
    assert buckets.whole_prompts(64, 1024, 4) == 16
    assert buckets.whole_prompts(12, 1536, 2) == 4  # three of 6 would be 4,608
    assert buckets.whole_prompts(8, 24576, 4) == 4  # a long one at a time
    assert buckets.whole_prompts(8, 49152, 4) == 0
    assert buckets.whole_prompts(7, 64, 4) == 0


def test_matrices_are_gathered_where_what_is_summed_in_their_place_is_nearly_as_large() -> None:
    """8B: a layer's matrices are 436 MB, and 8,192 tokens of a group of devices 268 MB of sums."""
    of = shapes_of(spec("llama3.1-8b", "v6e-8", algorithm="grpo")).structure
    assert buckets.gathered_prompts(of, 16, 1024, 2, 4) == 16
    assert buckets.gathered_prompts(of, 8, 1024, 2, 4) == 0
    assert buckets.gathered_prompts(of, 256, 1024, 2, 4) == 64  # 8,192 tokens on each of 8 devices
    assert buckets.gathered_prompts(of, 36, 1024, 2, 4) == 0  # not as many on each
    assert buckets.gathered_prompts(of, 256, 1024, 8, 1) == 0
    moe, latent = (
        shapes_of(spec(name, "v6e-64", algorithm="grpo")).structure for name in ("qwen3-30b-a3b", "deepseek-v3")
    )
    assert buckets.gathered_prompts(moe, 256, 1024, 2, 4) == buckets.gathered_prompts(latent, 256, 1024, 2, 4) == 0


def test_prompts_of_rows_that_are_taken_over_are_as_many_on_every_device() -> None:
    assert buckets.prompts_for(296, 8, shards=2, tensor=4) == 32  # 37 would be computed by each part of the rows
    assert buckets.prompts_for(40, 8, shards=2, tensor=4) == 4
    assert buckets.prompts_for(8, 8, shards=2, tensor=4) == 1
    assert buckets.prompts_for(4, 8, shards=1, tensor=1) == 1
    assert buckets.prompts_for(296, 8, shards=1, tensor=1) == 37
