"""The loss whose gradients are computed with a chunk's logits at hand: equal to the way that computes them again."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pttrainer.batch import Batch
from pttrainer.losses import policy_gradient, reference_kl
from pttrainer.losses.chunked_logprobs import Head, TokenStats, token_loss, token_stats
from pttrainer.losses.policy_gradient import Clip

B, T, D, V = 3, 11, 8, 23

LossOf = Callable[[TokenStats, Batch], Array]


def nll(stats: TokenStats, batch: Batch) -> Array:
    return -stats.logps_BT * batch.weight_BT


def surrogate(stats: TokenStats, batch: Batch) -> Array:
    """Ratios on both sides of the clip, and the pull of k3: slopes that depend on the log-probs."""
    loss_BT, ratio_BT = policy_gradient.token(
        stats.logps_BT, batch.old_logps_BT, batch.advantages_BT, batch.mask_BT, Clip(0.2, 0.2)
    )
    pull_BT = reference_kl.kl("k3", stats.logps_BT, batch.ref_logps_BT, ratio_BT)
    return (loss_BT + 0.1 * pull_BT) * batch.weight_BT


def bonus(stats: TokenStats, batch: Batch) -> Array:
    """The slope of the entropy differs from token to token, and from that of the log-prob."""
    return surrogate(stats, batch) - batch.ref_logps_BT * stats.entropy_BT * batch.weight_BT


LOSSES = {"nll": nll, "surrogate": surrogate}
HEADS = {
    "plain": Head(chunk=4),
    "entropy": Head(entropy=True, chunk=2),
    "cold": Head(temperature=0.7, chunk=4),
    "capped": Head(softcap=1.5, chunk=16),
    "cold and capped": Head(temperature=0.7, softcap=1.5, chunk=1),
}


def case(seed: int = 0) -> tuple[Array, Array, Batch]:
    keys = jax.random.split(jax.random.key(seed), 8)
    mask_BT = (jax.random.uniform(keys[3], (B, T)) > 0.4).astype(jnp.float32).at[1].set(0.0)
    near = -jnp.abs(jax.random.normal(keys[6], (B, T))) - 2.5
    batch = Batch(
        tokens_BT=jnp.zeros((B, T), jnp.int32),
        targets_BT=jax.random.randint(keys[2], (B, T), 0, V),
        positions_BT=jnp.zeros((B, T), jnp.int32),
        segment_ids_BT=jnp.ones((B, T), jnp.int32),
        mask_BT=mask_BT,
        weight_BT=mask_BT * jax.random.uniform(keys[4], (B, T)),
        advantages_BT=jax.random.normal(keys[5], (B, T)),
        old_logps_BT=near,
        ref_logps_BT=near + 0.3,
    )
    return jax.random.normal(keys[0], (B, T, D)), jax.random.normal(keys[1], (V, D)), batch


def again(loss_of: LossOf, head: Head, batch: Batch, hidden_BTD: Array, head_VD: Array) -> Array:
    stats = token_stats(hidden_BTD, head_VD, batch.targets_BT, batch.mask_BT, head)
    return jnp.sum(loss_of(stats, batch))


def at_hand(loss_of: LossOf, head: Head, batch: Batch, hidden_BTD: Array, head_VD: Array) -> Array:
    return token_loss(loss_of, head, hidden_BTD, head_VD, batch)[0]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("head", HEADS)
def test_value_and_gradients_equal_those_of_computing_logits_again(loss: str, head: str) -> None:
    hidden, weight, batch = case()
    of, how = LOSSES[loss], HEADS[head]
    got, got_gradients = jax.jit(jax.value_and_grad(partial(at_hand, of, how, batch), (0, 1)))(hidden, weight)
    wanted, gradients = jax.jit(jax.value_and_grad(partial(again, of, how, batch), (0, 1)))(hidden, weight)
    np.testing.assert_array_equal(got, wanted)
    for ours, theirs in zip(got_gradients, gradients, strict=True):
        assert float(jnp.abs(theirs).max()) > 0.01
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", [again, at_hand])
@pytest.mark.parametrize("head", [Head(chunk=4), HEADS["cold and capped"]])
def test_the_gradient_of_an_entropy_is_that_of_whole_logits(way: Any, head: Head) -> None:
    hidden, weight, batch = case(6)
    trained = head._replace(entropy=True, trains_entropy=True)

    def whole(hidden_BTD: Array, head_VD: Array) -> Array:
        logits_BTV = hidden_BTD @ head_VD.T
        if head.softcap is not None:
            logits_BTV = head.softcap * jnp.tanh(logits_BTV / head.softcap)
        logps_BTV = jax.nn.log_softmax(logits_BTV / head.temperature)
        logps_BT = jnp.take_along_axis(logps_BTV, batch.targets_BT[..., None], axis=-1)[..., 0]
        return jnp.sum(bonus(TokenStats(logps_BT, -jnp.sum(jnp.exp(logps_BTV) * logps_BTV, axis=-1)), batch))

    got, got_gradients = jax.jit(jax.value_and_grad(partial(way, bonus, trained, batch), (0, 1)))(hidden, weight)
    wanted, gradients = jax.jit(jax.value_and_grad(whole, (0, 1)))(hidden, weight)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    for ours, theirs in zip(got_gradients, gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_scaled_afterwards_scales_its_gradients() -> None:
    hidden, weight, batch = case(1)
    once = jax.grad(partial(at_hand, nll, Head(), batch), (0, 1))(hidden, weight)
    thrice = jax.grad(lambda h, w: 3.0 * at_hand(nll, Head(), batch, h, w), (0, 1))(hidden, weight)
    for a, b in zip(once, thrice, strict=True):
        np.testing.assert_allclose(3.0 * a, b, rtol=1e-6)


def test_no_gradient_flows_through_the_stats() -> None:
    hidden, weight, batch = case(2)
    gradient = jax.grad(lambda h: jnp.sum(token_loss(nll, Head(), h, weight, batch)[1].logps_BT))(hidden)
    np.testing.assert_array_equal(gradient, 0.0)


def test_a_head_that_is_not_trained_costs_no_gradient() -> None:
    hidden, weight, batch = case(3)

    def products(argnums: int | tuple[int, ...]) -> int:
        gradient = jax.grad(partial(at_hand, nll, Head(), batch), argnums)
        return str(jax.make_jaxpr(gradient)(hidden, weight)).count("dot_general")

    assert products((0, 1)) == 3
    assert products(0) == 2


def test_an_empty_mask_gives_zeros_and_no_nan() -> None:
    hidden, weight, batch = case(4)
    empty = batch._replace(mask_BT=jnp.zeros((B, T)), weight_BT=jnp.zeros((B, T)))
    value, gradients = jax.value_and_grad(partial(at_hand, surrogate, Head(entropy=True), empty), (0, 1))(
        hidden, weight
    )
    assert float(value) == 0.0
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0.0)


def test_bfloat16_hidden_states_get_bfloat16_gradients_close_to_those_of_float32() -> None:
    hidden, weight, batch = case(5)
    low = jax.grad(partial(at_hand, nll, Head(), batch), (0, 1))(
        hidden.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    )
    high = jax.grad(partial(at_hand, nll, Head(), batch), (0, 1))(hidden, weight)
    for a, b in zip(low, high, strict=True):
        assert a.dtype == jnp.bfloat16
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.05)
