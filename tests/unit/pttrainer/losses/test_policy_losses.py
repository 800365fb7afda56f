"""The chunked head: values against whole logits, gradients, and what never exists."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from tests.builders.trainer.preflight import spec

from pttrainer.losses.chunk_size import largest_chunk
from pttrainer.losses.chunked_logprobs import Head, token_stats
from pttrainer.losses.chunking import chunk_size
from pttrainer.preflight.shapes.job_shapes import shapes_of

B, T, D, V = 3, 11, 8, 23


def case(seed: int = 0) -> tuple[Array, Array, Array, Array, Array]:
    """hidden, head, targets, mask, cotangents"""
    keys = jax.random.split(jax.random.key(seed), 5)
    mask = (jax.random.uniform(keys[3], (B, T)) > 0.4).astype(jnp.float32)
    return (
        jax.random.normal(keys[0], (B, T, D)),
        jax.random.normal(keys[1], (V, D)),
        jax.random.randint(keys[2], (B, T), 0, V),
        mask,
        jax.random.normal(keys[4], (B, T)),
    )


def whole(hidden: Array, head: Array, targets: Array, temperature: float) -> tuple[Array, Array]:
    """Log-probs and entropies the plain way, in float64-like precision of the test size."""
    logits = jnp.einsum("btd,vd->btv", hidden, head, precision="highest") / temperature
    logps = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(logps, targets[..., None], -1)[..., 0], -jnp.sum(jnp.exp(logps) * logps, -1)


def test_a_case_worked_by_hand() -> None:
    # Logits are (0, ln 3) for both tokens: probabilities 1/4 and 3/4.
    hidden, head = jnp.ones((1, 2, 1)), jnp.array([[0.0], [math.log(3.0)]])
    stats = token_stats(hidden, head, jnp.array([[0, 1]]), jnp.ones((1, 2)), Head(entropy=True))
    np.testing.assert_allclose(stats.logps_BT[0], [math.log(0.25), math.log(0.75)], rtol=1e-6)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    np.testing.assert_allclose(stats.entropy_BT[0], [entropy, entropy], rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 4, 16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_equal_those_of_whole_logits_where_the_mask_is_set(chunk: int, temperature: float) -> None:
    hidden, head, targets, mask, _ = case()
    stats = token_stats(hidden, head, targets, mask, Head(temperature=temperature, entropy=True, chunk=chunk))
    logps, entropy = whole(hidden, head, targets, temperature)
    np.testing.assert_allclose(stats.logps_BT, logps * mask, atol=2e-6)
    np.testing.assert_allclose(stats.entropy_BT, entropy * mask, atol=5e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_capped_logits_have_the_values_and_gradients_of_whole_capped_logits(temperature: float) -> None:
    hidden, head, targets, mask, slope = case(2)

    def capped(h: Array, w: Array) -> Array:
        logits = 1.5 * jnp.tanh(jnp.einsum("btd,vd->btv", h, w, precision="highest") / 1.5) / temperature
        logps = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
        return jnp.sum(logps * mask * slope)

    def ours(h: Array, w: Array) -> Array:
        stats = token_stats(h, w, targets, mask, Head(temperature=temperature, softcap=1.5, chunk=2))
        return jnp.sum(stats.logps_BT * slope)

    for got, wanted in zip(
        jax.tree.leaves(jax.value_and_grad(ours, (0, 1))(hidden, head)),
        jax.tree.leaves(jax.value_and_grad(capped, (0, 1))(hidden, head)),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, atol=5e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_equal_those_of_whole_logits(temperature: float) -> None:
    hidden, head, targets, mask, slope = case(1)
    ours = jax.grad(
        lambda h, w: jnp.sum(
            token_stats(h, w, targets, mask, Head(temperature=temperature, entropy=True, chunk=2)).logps_BT * slope
        ),
        (0, 1),
    )
    reference = jax.grad(lambda h, w: jnp.sum(whole(h, w, targets, temperature)[0] * mask * slope), (0, 1))
    for got, wanted in zip(ours(hidden, head), reference(hidden, head), strict=True):
        np.testing.assert_allclose(got, wanted, atol=5e-6)


def test_gradient_equals_the_analytic_one_of_a_single_token() -> None:
    # d logp(target) / d hidden = W[target] − Σ p W
    hidden, head, _, _, _ = case(2)
    gradient = jax.grad(lambda h: token_stats(h[None, None], head, jnp.array([[5]]), jnp.ones((1, 1))).logps_BT[0, 0])(
        hidden[0, 0]
    )
    probabilities = jax.nn.softmax(head @ hidden[0, 0])
    np.testing.assert_allclose(gradient, head[5] - probabilities @ head, atol=2e-6)


def test_tokens_outside_the_mask_get_no_gradient_whatever_the_cotangent() -> None:
    hidden, head, targets, mask, slope = case(3)
    gradient = jax.grad(lambda h: jnp.sum(token_stats(h, head, targets, mask).logps_BT * slope))(hidden)
    np.testing.assert_array_equal(np.asarray(gradient)[np.asarray(mask) == 0], 0.0)


def test_an_empty_mask_gives_zeros_and_no_nan() -> None:
    hidden, head, targets, mask, _ = case(4)

    def total(h: Array, w: Array) -> Array:
        return jnp.sum(token_stats(h, w, targets, jnp.zeros_like(mask), Head(entropy=True)).logps_BT)

    value, gradients = jax.value_and_grad(total, (0, 1))(hidden, head)
    assert value == 0.0
    assert all(not np.any(np.asarray(g)) for g in gradients)


def test_extreme_logits_stay_finite() -> None:
    hidden, head, targets, mask, _ = case(5)
    stats = token_stats(hidden * 1e4, head, targets, mask, Head(entropy=True))
    assert np.isfinite(stats.logps_BT).all()
    assert np.isfinite(stats.entropy_BT).all()


def test_results_do_not_depend_on_neighbours_in_the_batch() -> None:
    hidden, head, targets, mask, _ = case(6)
    alone = token_stats(hidden[:1], head, targets[:1], mask[:1], Head(chunk=4)).logps_BT
    together = token_stats(hidden, head, targets, mask, Head(chunk=4)).logps_BT[:1]
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_bfloat16_hidden_states_are_reduced_in_float32() -> None:
    hidden, head, targets, mask, _ = case(7)
    stats = token_stats(hidden.astype(jnp.bfloat16), head.astype(jnp.bfloat16), targets, mask)
    assert stats.logps_BT.dtype == jnp.float32
    np.testing.assert_allclose(stats.logps_BT, whole(hidden, head, targets, 1.0)[0] * mask, atol=0.05)


def test_chunks_shrink_with_batch_and_vocabulary_to_128_tokens() -> None:
    assert chunk_size(8, 256, 16_384) * 8 * 16_384 <= 2**22
    assert chunk_size(8, 4096, 151_936) * 8 == 128
    assert chunk_size(1, 4096, 262_144) == 128
    assert chunk_size(1, 5, 10) == 4


@pytest.mark.parametrize(
    ("rows", "length", "words", "devices", "tokens"),
    [
        (48, 8192, 128_256, 16, 1536),  # 24,576 tokens a device
        (32, 4096, 128_256, 8, 1024),
        (16, 4096, 128_256, 16, 512),  # few tokens: larger chunks would be the most that the step holds
        (128, 8192, 262_144, 16, 1024),  # at most 1 GB
    ],
)
def test_a_tpus_chunk_grows_with_the_tokens_of_a_device(
    rows: int, length: int, words: int, devices: int, tokens: int
) -> None:
    assert rows * largest_chunk(rows, length, words, devices, "tpu", 4096) // devices == tokens
    assert rows * largest_chunk(rows, length, words, devices, "tpu") // devices <= 512  # losses of whole rows
    assert rows * largest_chunk(rows, length, words, devices, "cpu", 4096) <= 128 * devices


@pytest.mark.parametrize(
    ("model", "chip", "rows", "length", "tokens", "of_adapters"),
    [
        ("gemma3-4b", "v6e-8", 16, 8192, 1024, 256),  # half of 2,560, in a power of two
        ("gemma3-27b", "v6e-64", 64, 4096, 2048, 128),
        ("qwen3-0.6b", "v5e-4", 16, 2048, 512, 256),
        ("llama3.1-8b", "v6e-16", 48, 8192, 1536, 1536),  # a head of its own
    ],
)
def test_a_chunk_that_adds_to_the_embeddings_gradient_has_half_of_the_width(
    model: str, chip: str, rows: int, length: int, tokens: int, of_adapters: int
) -> None:
    def of_device(**training: Any) -> int:
        return shapes_of(spec(model, chip, batchSize=rows, sequenceLength=length, **training)).head_tokens_per_device

    assert of_device() == tokens
    assert of_device(lora={"rank": 16}) == of_adapters
