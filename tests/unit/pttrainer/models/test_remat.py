"""What each policy of `training.remat` computes again: the same gradient, from fewer products."""

import re
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.models import CASES

from pttrainer.models import Model, ModelConfig, from_hf
from pttrainer.models.forward import remat as remat_module
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
    assert products["offload-input-context"] == products["save-context"]
    assert products["offload-input"] == products["full"]
    assert products["none"] == products["full"] - 6


@pytest.mark.parametrize(("config", "held"), [(CONFIG, 0), (from_hf(CASES["gemma-4"]), 3)])
def test_layers_of_one_body_are_computed_again_one_by_one_on_a_tpu(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, held: int
) -> None:
    """Each waits for the gradient of its output; its weights do not, whose gathers begin before."""
    assert [len(scan) for scan in config.scans] == ([held, 1] if held else [1])
    model = Model(config, remat="full")
    loss = lambda params: jnp.sum(model.forward(params, *ROWS) ** 2)  # noqa: E731
    stream = f"tensor<{'x'.join(map(str, TOKENS.shape))}x{config.d_model}xf32>"

    def barriers() -> list[str]:
        program = jax.jit(jax.grad(loss)).lower(model.abstract()).as_text()
        return [types for types in re.findall(r"optimization_barrier .* : (.*)", program) if stream in types]

    assert barriers() == []
    monkeypatch.setattr(remat_module, "chip", lambda: ("tpu", "TPU v6 lite"))
    assert barriers() == [f"{stream}, {stream}"] * held


SENT: list[tuple[Remat, int]] = [
    ("save-qkv-context", 0), ("offload-qkv", 3), ("offload-qkv-context", 4), ("offload-input", 1),
    ("offload-input-context", 2),
]  # fmt: skip


@pytest.mark.parametrize(("remat", "arrays"), SENT)
def test_what_a_policy_sends_to_the_host(remat: Remat, arrays: int) -> None:
    sent = re.findall(r"device_put\[[^\]]*devices=\(MemorySpace.Host", str(jax.make_jaxpr(gradient(remat))(PARAMS)))
    assert len(sent) == arrays


def test_a_policy_changes_no_gradient() -> None:
    leaves = {remat: jax.tree.leaves(jax.jit(gradient(remat))(PARAMS)) for remat in get_args(Remat)}
    for ours, reference in zip(leaves["save-qkv-context"], leaves["full"], strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5)
    # The same program, with the same arrays elsewhere.
    for saved, offloaded in [
        ("save-qkv-context", ["offload-qkv", "offload-qkv-context"]),
        ("save-context", ["offload-input-context"]),
        ("full", ["offload-input"]),
    ]:
        for remat in offloaded:
            for ours, reference in zip(leaves[remat], leaves[saved], strict=True):
                np.testing.assert_array_equal(ours, reference)


def test_an_input_in_host_memory_is_on_no_device_between_the_passes() -> None:
    """What the scan over layers stacks for the backward pass: of `full` the stream alone, here nothing."""

    def stacked(remat: Remat) -> list[str]:
        text = str(jax.make_jaxpr(gradient(remat))(PARAMS))
        return re.findall(r"f32(?:<host>)?\[2,2,8,16\]", text)

    assert "f32[2,2,8,16]" in stacked("full")
    assert set(stacked("offload-input")) == {"f32<host>[2,2,8,16]"}
