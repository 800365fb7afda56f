"""Rows whose tokens devices share: a pass in the balanced order gives hidden states, uses of experts and gradients of
one device, and is taken only where every layer knows the order."""

import dataclasses
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.models import CASES

from pttrainer.models import Model, from_hf
from pttrainer.models.attention import flash_kernels
from pttrainer.models.forward import packed_attention
from pttrainer.models.forward.packed_rows import Perturbations, Rows, hidden_states
from pttrainer.runtime.distributed import balanced_rows, sharding

ROWS, TOKENS = 2, 512
TOLERANCE = 1e-4
"""Of float32 sums over all tokens, in another order. Measured: 7e-5, of a gradient that nearly cancels out."""
SHARED = (2, 1, 1, 2)


@lru_cache
def model(family: str) -> Model:
    config = from_hf(CASES[family])
    if any(config.borrowing_layers):
        return Model(config)
    kept = {"local_layers": config.local_layers[:2], "dense_layers": config.dense_layers[-2:]}
    return Model(dataclasses.replace(config, layers=2, **kept))


def rows(vocabulary: int) -> Rows:
    tokens = np.random.default_rng(0).integers(0, vocabulary, (ROWS, TOKENS)).astype(np.int32)
    positions = np.tile(np.arange(TOKENS, dtype=np.int32), (ROWS, 1))
    segments = np.ones_like(positions)
    segments[0, 200:], positions[0, 200:] = 2, positions[0, 200:] - 200
    segments[0, 490:] = 0
    return Rows(*map(jnp.asarray, (tokens, positions, segments)))


def of_pass(family: str, given: bool, is_trained: bool) -> Any:
    """Hidden states where there are tokens, uses of experts, and if trained the gradients of all weights."""
    this = model(family)
    weights, of_rows = this.init(jax.random.key(0)), rows(this.config.vocab_size)
    counts_BT = of_rows.segment_ids_BT > 0
    routes = None
    if given:
        assert this.config.experts is not None
        shape = (ROWS, TOKENS, len(this.config.expert_layers), this.config.experts.per_token)
        routes = jnp.argsort(jax.random.uniform(jax.random.key(1), (*shape[:-1], this.config.experts.count)))
        routes = routes[..., : shape[-1]].astype(this.config.experts.number_dtype)

    def loss(weights: Any) -> Any:
        hidden_BTD, use = hidden_states(this, weights, of_rows, counts_BT=counts_BT, routes_BTLk=routes)
        real = jnp.where(counts_BT[..., None], hidden_BTD, 0.0)
        return jnp.sum(real * jnp.sin(jnp.arange(real.size).reshape(real.shape))), (real, use)

    return jax.device_get(jax.jit(jax.grad(loss, has_aux=True) if is_trained else loss)(weights))


@pytest.fixture
def splash(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Takes splash, interpreted, for rows that devices share; holds whether tokens were in the balanced order."""
    orders: list[bool] = []
    attend = partial(flash_kernels.attend, interpret=True)

    def recorded(*inputs: Any, is_balanced: bool = False, **named: Any) -> Any:
        orders.append(is_balanced)
        return attend(*inputs, is_balanced=is_balanced, **named)

    monkeypatch.setattr(flash_kernels, "attend", recorded)
    choose = flash_kernels.choose_kernel
    monkeypatch.setattr(flash_kernels, "choose_kernel", lambda of: "splash" if of.token_shards > 1 else choose(of))
    return orders


@pytest.mark.parametrize(
    ("family", "given", "is_trained"),
    [
        ("qwen-3", False, True),
        ("gemma-2", False, True),
        ("gemma-4-small", False, False),
        ("gpt-oss", False, False),
        ("llama-4", False, False),
        ("qwen-3-moe", True, True),
        ("deepseek-v3", False, False),
    ],
)
def test_a_pass_in_balanced_order_is_that_of_one_device(
    family: str, given: bool, is_trained: bool, splash: list[bool]
) -> None:
    alone = of_pass(family, given, is_trained)
    assert not splash
    with jax.set_mesh(sharding.make_mesh(SHARED)):
        shared = of_pass(family, given, is_trained)
    assert all(splash)
    assert splash
    leaves = zip(*map(jax.tree.leaves, (shared, alone)), strict=True)
    for ours, theirs in leaves:
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * max(np.abs(theirs).max(), 1))


def test_what_is_drawn_for_tokens_in_their_order_keeps_it(splash: list[bool]) -> None:
    this = model("qwen-3")
    noisy = Perturbations(noisy=lambda x_BTD: x_BTD + jnp.arange(TOKENS)[None, :, None])
    weights = this.init(jax.random.key(0))
    alone = hidden_states(this, weights, rows(this.config.vocab_size), noisy)[0]
    with jax.set_mesh(sharding.make_mesh(SHARED)):
        shared = jax.jit(lambda: hidden_states(this, weights, rows(this.config.vocab_size), noisy)[0])()
    assert not any(splash)
    real = np.asarray(rows(this.config.vocab_size).segment_ids_BT) > 0
    np.testing.assert_allclose(np.asarray(shared)[real], np.asarray(alone)[real], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("family", "length", "is_possible"),
    [
        ("qwen-3", 512, True),
        ("qwen-3-next", 512, False),  # the delta rule goes from token to token
        ("deepseek-v3.2", 512, False),  # an indexer's choice is made over the whole row
        ("llama-4", 512, True),
    ],
)
def test_layers_that_depend_on_the_order_keep_it(
    family: str, length: int, is_possible: bool, splash: list[bool]
) -> None:
    config = from_hf(CASES[family])
    with jax.set_mesh(sharding.make_mesh(SHARED)):
        assert packed_attention.can_be_balanced(config, ROWS, length, "float32") == is_possible
    with jax.set_mesh(sharding.make_mesh((2,))):
        assert not packed_attention.can_be_balanced(config, ROWS, length, "float32")


def test_two_pieces_of_a_row_go_to_each_device() -> None:
    assert balanced_rows.order(1) == (0, 1)
    assert balanced_rows.order(4) == (0, 7, 1, 6, 2, 5, 3, 4)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_both_ways_back_are_inverse(devices: int) -> None:
    x_BTX = jnp.arange(2 * 32 * 3).reshape(2, 32, 3)
    with jax.set_mesh(sharding.make_mesh((1, 1, 1, devices))):
        there = jax.jit(balanced_rows.balanced)(x_BTX)
        np.testing.assert_array_equal(jax.jit(balanced_rows.natural)(there), x_BTX)
    assert not np.array_equal(there, x_BTX)
    np.testing.assert_array_equal(balanced_rows.natural_rows(jnp.asarray(np.asarray(there)), devices), x_BTX)
