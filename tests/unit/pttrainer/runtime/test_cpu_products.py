"""Gradients of products on one CPU: those of autodiff, by products that XLA gives to its library for CPUs."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from tests.builders.trainer.steps import batch, steps

from ptapi.spec import Training
from pttrainer.runtime import cpu_products
from pttrainer.runtime.distributed import sharding


def numbers(seed: int, *shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def contracted_axes(compiled: Any) -> set[str]:
    """Return the axes of left sides over which a program's products of two matrices sum."""
    return set(re.findall(r" dot\([^)]*\), lhs_contracting_dims={(\d)}", compiled.as_text()))


@pytest.mark.parametrize(("N", "X", "Y"), [(256, 8, 24), (256, 24, 8), (256, 16, 16), (7, 24, 8)])
def test_gradients_are_those_of_a_plain_product(N: int, X: int, Y: int) -> None:
    x_NX, w_XY, weights_NY = numbers(0, N, X), numbers(1, X, Y), numbers(2, N, Y)

    def gradients(of: Any) -> Any:
        return jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(of(x, w)) * weights_NY), argnums=(0, 1)))(x_NX, w_XY)

    for ours, plain in zip(gradients(cpu_products.product), gradients(jnp.matmul), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-6, atol=2e-5)


def test_a_plain_gradient_has_a_transposed_left_side() -> None:
    loss = jax.jit(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))))
    assert "0" in contracted_axes(loss.lower(numbers(0, 64, 256), numbers(1, 256, 64)).compile())


def test_no_product_of_a_train_step_has_a_transposed_left_side() -> None:
    run = steps(Training(batch_size=16, steps=1, sequence_length=16))
    twice = jax.tree.map(lambda x_BT: np.tile(x_BT, (2, 1)), batch())
    with jax.set_mesh(run.mesh):
        program = run.compiled.lower(run.state, sharding.put(run.mesh, twice)).compile()
    assert contracted_axes(program) == {"1"}


def test_other_types_are_left_to_the_compiler() -> None:
    assert cpu_products.are_used(jnp.dtype("float32"))
    assert not cpu_products.are_used(jnp.dtype("bfloat16"))
