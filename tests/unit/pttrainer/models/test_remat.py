"""What each policy of `training.remat` computes again: the same gradient, from fewer products."""

import re
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.models import Model, ModelConfig
from pttrainer.models.shapes.structure import Remat

CONFIG = ModelConfig(
    "llama", vocab_size=31, d_model=16, layers=2, heads=4, kv_heads=2, head_dim=8, d_ff=24
)  # fmt: skip
TOKENS = jax.random.randint(jax.random.key(0), (2, 8), 0, 31)
ROWS = TOKENS, jnp.tile(jnp.arange(8), (2, 1)), jnp.ones((2, 8), jnp.int32)
PARAMS = Model(CONFIG).init(jax.random.key(1))


def gradient(remat: Remat) -> Any:
    model = Model(CONFIG, remat=remat)
    return jax.grad(lambda params: jnp.sum(model.forward(params, *ROWS) ** 2))


def test_a_policy_that_keeps_more_multiplies_less() -> None:
    products = {remat: str(jax.make_jaxpr(gradient(remat))(PARAMS)).count("dot_general[") for remat in get_args(Remat)}
    # Of a layer: q, k, v, scores and output of attention, o, gate, up; what `down` returns, nothing reads again.
    assert products["save-context"] == products["full"] - 1
    assert products["save-qkv-context"] == products["full"] - 1 - 3
    assert products["offload-qkv"] == products["offload-qkv-context"] == products["save-qkv-context"]
    assert products["none"] == products["full"] - 6


@pytest.mark.parametrize(("remat", "arrays"), [("save-qkv-context", 0), ("offload-qkv", 3), ("offload-qkv-context", 4)])
def test_what_a_policy_sends_to_the_host(remat: Remat, arrays: int) -> None:
    sent = re.findall(r"device_put\[[^\]]*devices=\(MemorySpace.Host", str(jax.make_jaxpr(gradient(remat))(PARAMS)))
    assert len(sent) == arrays


def test_a_policy_changes_no_gradient() -> None:
    policies: tuple[Remat, ...] = ("full", "save-qkv-context", "offload-qkv", "offload-qkv-context")
    whole, saved, *offloaded = (jax.tree.leaves(jax.jit(gradient(remat))(PARAMS)) for remat in policies)
    for ours, reference in zip(saved, whole, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5)
    for leaves in offloaded:  # the same program, with the same arrays elsewhere
        for ours, reference in zip(leaves, saved, strict=True):
            np.testing.assert_array_equal(ours, reference)
