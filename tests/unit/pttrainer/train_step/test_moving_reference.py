"""The reference that follows the policy: when, how far, and what stays to the bit."""

import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.train_step.optimizer.moving_reference import MovingReference, split_reference, with_reference

RANDOM = np.random.default_rng(3)
OLD, NEW = ({"w": jnp.asarray(RANDOM.normal(0, 1, (4, 5)), jnp.float32)} for _ in range(2))


@pytest.mark.parametrize(("step", "moves"), [(1, False), (2, True), (3, False), (4, True)])
def test_it_moves_after_every_second_step_by_its_share(step: int, moves: bool) -> None:
    got = MovingReference(every=2, mixup=0.25).updated(OLD, NEW, jnp.int32(step))["w"]
    np.testing.assert_allclose(got, 0.75 * OLD["w"] + 0.25 * NEW["w"] if moves else OLD["w"], rtol=1e-5, atol=1e-6)
    assert moves or (np.asarray(got) == np.asarray(OLD["w"])).all()


def test_with_a_share_of_1_it_is_the_policy_to_the_bit() -> None:
    np.testing.assert_array_equal(MovingReference(1, 1.0).updated(OLD, NEW, jnp.int32(7))["w"], NEW["w"])


@pytest.mark.parametrize("mixup", [0.1, 0.6, 1.0])
def test_weights_that_do_not_change_stay_to_the_bit(mixup: float) -> None:
    np.testing.assert_array_equal(MovingReference(1, mixup).updated(OLD, OLD, jnp.int32(1))["w"], OLD["w"])


def test_it_keeps_the_number_format_of_the_weights() -> None:
    old, new = ({"w": of["w"].astype(jnp.bfloat16)} for of in (OLD, NEW))
    got = MovingReference(1, 0.5).updated(old, new, jnp.int32(1))["w"]
    middle = (old["w"].astype(jnp.float32) + new["w"].astype(jnp.float32)) / 2
    np.testing.assert_array_equal(got, middle.astype(jnp.bfloat16))


def test_the_policy_and_its_reference_are_told_apart() -> None:
    assert split_reference(with_reference(NEW, OLD)) == (NEW, OLD)
    assert split_reference(with_reference(NEW, None)) == (NEW, None)
