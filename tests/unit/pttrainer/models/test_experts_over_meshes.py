"""A layer of experts with biases computes the same on every mesh, and learns the same."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.builders.peers.models import CASES

from pttrainer.models import from_hf
from pttrainer.models.layers.mixture.experts import ExpertMLP
from pttrainer.runtime.distributed import sharding

TOLERANCE = 1e-5
"""Absolute, of numbers up to 2 and of gradients up to 10, float32."""


def _results_and_gradients() -> Any:
    config = from_hf(CASES["gpt-oss"])
    assert config.experts is not None
    config = replace(config, experts=replace(config.experts, count=4, d_ff=16))
    graph, layers = nnx.split(ExpertMLP(config, nnx.Rngs(0)))
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(layers))))
    state = jax.tree.map(lambda x: jax.random.normal(next(keys), x[0].shape) / 8, layers)  # biases, too
    x_BTD = jax.random.normal(jax.random.key(2), (4, 6, config.d_model))

    def loss(state: Any, x_BTD: Any) -> Any:
        out_BTD = nnx.merge(graph, state)(x_BTD, None, x_BTD)[0]
        return jnp.sum(out_BTD**2), out_BTD

    return jax.device_get(jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(state, x_BTD))


@pytest.mark.parametrize("mesh", [(1, 1, 2), (1, 2, 2), (1, 1, 4, 1, 2), (1, 2, 1, 1, 2), (1, 1, 2, 2)], ids=str)
def test_biased_experts(mesh: tuple[int, ...]) -> None:
    """Devices that divide an expert's inner axis sum their results: `down`'s bias is in the sum once."""
    plain = _results_and_gradients()
    with jax.set_mesh(sharding.make_mesh(mesh, jax.devices()[: np.prod(mesh)])):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=TOLERANCE), _results_and_gradients(), plain)
