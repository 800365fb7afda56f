"""Collectives that are written out give the products and look-ups of one device, and their gradients."""

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from tests.builders.peers.models import CASES

from pttrainer.models import from_hf
from pttrainer.models.layers.gated_mlp import GatedMLP
from pttrainer.models.lora.adapters import Adapters
from pttrainer.runtime.distributed import explicit_collectives as explicit
from pttrainer.runtime.distributed import logical_axes, sharding

MESHES = [{"fsdp": 8}, {"data": 2, "fsdp": 4}, {"fsdp": 4, "expert": 2}]
X, W, PULL = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(16, 64), (64, 32), (16, 32)]))
WIDE = jax.random.normal(jax.random.key(7), (64, 64))
TABLE, TOKENS = jax.random.normal(jax.random.key(3), (50, 16)), jax.random.randint(jax.random.key(4), (16, 8), 0, 50)


@pytest.mark.parametrize("split", MESHES, ids=str)
@pytest.mark.parametrize("axes", [("embed", "mlp"), ("mlp", "embed")])
def test_a_product_and_its_gradients_are_those_of_one_device(split: dict[str, int], axes: tuple[str, str]) -> None:
    def pulled(x: Array, w: Array) -> Array:
        return jnp.sum(explicit.product(x, w, axes) * PULL)

    with jax.set_mesh(mesh(split)):
        of_x, of_w = jax.jit(jax.grad(pulled, (0, 1)))(X, W)
    np.testing.assert_allclose(of_x, PULL @ W.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, X.T @ PULL, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [("embed", "mlp"), ("mlp", "embed")])
def test_on_tpus_so_are_those_of_a_matrix_that_is_split_inside(
    axes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logical_axes, "GATHERING", ("cpu",))
    with jax.set_mesh(mesh({"fsdp": 8})):
        [stored] = jax.tree.leaves(sharding.weight_shardings(mesh({"fsdp": 8}), [WIDE], [axes]))
        pulled = jax.jit(jax.grad(lambda x, w: jnp.sum(explicit.product(x, w, axes) * X), (0, 1)))
        of_x, of_w = pulled(X, jax.device_put(WIDE, stored))
    assert stored.shard_shape((64, 64))[axes.index("mlp")] == 8
    np.testing.assert_allclose(of_x, X @ WIDE.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, X.T @ X, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [("embed", "mlp"), ("mlp", "embed")])
def test_so_are_those_of_a_matrix_that_is_gathered_over_chips_after_their_devices(
    axes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(explicit.STEPS, (jax.devices()[0].device_kind, 8), 2)
    with jax.set_mesh(mesh({"fsdp": 8})):
        pulled = jax.jit(jax.grad(lambda x, w: jnp.sum(explicit.product(x, w, axes) * PULL), (0, 1)))
        (of_x, of_w), text = pulled(X, W), pulled.lower(X, W).as_text()
    np.testing.assert_allclose(of_x, PULL @ W.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, X.T @ PULL, rtol=1e-5, atol=1e-5)
    assert "dense<[[0, 1], [2, 3], [4, 5], [6, 7]]>" in text
    assert "dense<[[0, 2, 4, 6], [1, 3, 5, 7]]>" in text


@pytest.mark.parametrize("split", [{"fsdp": 4, "sequence": 2}, {"sequence": 8}], ids=str)
@pytest.mark.parametrize(("axes", "heads"), [(("embed", "mlp"), (None, None)), (("heads", "embed"), (8, None))])
def test_so_are_those_of_rows_whose_tokens_devices_share(
    axes: tuple[str, str], heads: explicit.Heads, split: dict[str, int]
) -> None:
    rows, pull = X.reshape(4, 4, 64).repeat(2, axis=1), PULL.reshape(4, 4, 32).repeat(2, axis=1)

    def pulled(x_BTX: Array, w: Array) -> Array:
        return jnp.sum(explicit.product(x_BTX, w, axes, heads) * pull)

    with jax.set_mesh(mesh(split)):
        of_x, of_w = jax.jit(jax.grad(pulled, (0, 1)))(rows, W)
    np.testing.assert_allclose(of_x, pull @ W.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, 2 * X.T @ PULL, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("axes", "heads"),
    [
        (("embed", "heads"), (None, 8)),
        (("embed", "kv_heads"), (None, 8)),
        (("heads", "embed"), (8, None)),
        ((None, "low_rank"), (None, 8)),  # four heads in eight parts
        (("low_rank", None), (16, None)),
    ],
)
def test_so_are_those_of_a_matrix_that_is_cut_into_heads(axes: tuple[str | None, ...], heads: explicit.Heads) -> None:
    rows = X.reshape(8, 2, 64)

    def pulled(x_BTX: Array, w: Array) -> Array:
        return jnp.sum(explicit.product(x_BTX, w, axes, heads) * PULL.reshape(8, 2, 32))

    with jax.set_mesh(mesh({"fsdp": 8})):
        of_x, of_w = jax.jit(jax.grad(pulled, (0, 1)))(rows, W)
    np.testing.assert_allclose(of_x.reshape(16, 64), PULL @ W.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, X.T @ PULL, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [None, 8], ids=["plain", "four heads"])
def test_so_are_those_of_an_adapter_which_is_sent_without_the_lanes_that_its_rank_does_not_fill(
    heads: int | None,
) -> None:
    rank, rows = 4, X.reshape(8, 2, 64)
    a, b = W[:, :rank], WIDE[:rank, :32]

    def pulled(x_BTX: Array, a: Array, b: Array) -> Array:
        low_BTR = explicit.product(x_BTX, a, ("embed", None), rank=1)
        return jnp.sum(explicit.product(low_BTR, b, (None, "low_rank"), (None, heads), rank=0) * PULL.reshape(8, 2, 32))

    with jax.set_mesh(mesh({"fsdp": 4})):
        gradients = jax.jit(jax.grad(pulled, (0, 1, 2)))
        of_x, of_a, of_b = gradients(rows, a, b)
        text = gradients.lower(rows, a, b).as_text()
    np.testing.assert_allclose(of_x.reshape(16, 64), PULL @ b.T @ a.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_a, X.T @ PULL @ b.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_b, (X @ a).T @ PULL, rtol=1e-5, atol=1e-5)
    sent = re.findall(r"(?:all_gather|reduce_scatter).*?-> tensor<([\dx]+)xf32>", text, re.DOTALL)
    assert sent
    assert not any("128" in size.split("x") for size in sent)


@pytest.mark.parametrize(
    ("axes", "heads"), [((None, "mlp"), (None, None)), (("mlp", None), (None, None)), ((None, "heads"), (None, 8))]
)
def test_so_is_that_of_rows_that_the_devices_of_tensor_divide_too(
    axes: tuple[str | None, ...], heads: explicit.Heads
) -> None:
    with jax.set_mesh(mesh({"fsdp": 2, "tensor": 4})):
        multiplied = jax.jit(lambda x, w: explicit.product(x, w, axes, heads, "spread_batch"))
        out, text = multiplied(X, W), multiplied.lower(X, W).compile().as_text()
    np.testing.assert_allclose(out, X @ W, rtol=1e-5, atol=1e-5)
    assert out.sharding.shard_shape(out.shape) == (2, 32)
    assert "all-reduce" not in text


@pytest.mark.parametrize("split", [*MESHES, {"fsdp": 2, "sequence": 4}], ids=str)
def test_so_are_rows_of_a_table_in_the_compute_format_and_its_gradient_in_its_own(split: dict[str, int]) -> None:
    pull = jax.random.normal(jax.random.key(5), (16, 8, 16))

    def pulled(table: Array, dtype: str) -> Array:
        return jnp.sum(explicit.look_up(table, TOKENS, dtype).astype(jnp.float32) * pull)

    with jax.set_mesh(mesh(split)):
        looked_up = jax.jit(lambda table: explicit.look_up(table, TOKENS, "bfloat16"))(TABLE)
        gradient = jax.jit(jax.grad(lambda table: pulled(table, "float32")))(TABLE)
    assert looked_up.dtype == jnp.bfloat16
    np.testing.assert_array_equal(looked_up, TABLE.astype(jnp.bfloat16)[TOKENS])
    np.testing.assert_allclose(gradient, jnp.zeros_like(TABLE).at[TOKENS].add(pull), rtol=1e-5, atol=1e-5)


def test_so_are_those_of_an_adapter_whose_rank_fills_no_tile() -> None:
    config = dataclasses.replace(from_hf(CASES["qwen-3"]), layers=1, d_model=64, d_ff=32)
    adapters = Adapters(4, 8.0, ("gate", "up", "down"))
    rows = X.reshape(8, 2, 64)

    def loss(weights: Any, x_BTD: Array, *, is_explicit: bool) -> Array:
        part = GatedMLP(config, nnx.Rngs(0), adapters)
        nnx.update(part, weights)
        if is_explicit:
            explicit.put_into(part, ("gate", "up", "down"))
        return jnp.sum(part(x_BTD) ** 2)

    stacked = nnx.state(GatedMLP(config, nnx.Rngs(0), adapters))
    keys = iter(jax.random.split(jax.random.key(6), 100))
    weights = jax.tree.map(lambda w: jax.random.normal(next(keys), w.shape[1:]), stacked)
    expected = jax.grad(partial(loss, is_explicit=False), (0, 1))(weights, rows)
    with jax.set_mesh(mesh({"fsdp": 8})):
        actual = jax.jit(jax.grad(partial(loss, is_explicit=True), (0, 1)))(weights, rows)
    assert len(jax.tree.leaves(actual)) == 10
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3 * np.abs(b).max()), actual, expected
    )


def test_the_compiler_chooses_on_cpus_and_on_meshes_that_split_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.set_mesh(mesh({"fsdp": 8})):
        assert not explicit.are_used(16, 64)
        monkeypatch.setattr(logical_axes, "GATHERING", ("cpu",))
        assert explicit.are_used(16, 64)
        assert not explicit.are_used(12, 64)
    with jax.set_mesh(mesh({"fsdp": 4, "sequence": 2})):
        assert explicit.are_used(4, 64)
        assert not explicit.are_used(4, 63)
    for split in ({"data": 8}, {"fsdp": 4, "tensor": 2}):
        with jax.set_mesh(mesh(split)):
            assert not explicit.are_used(16, 64)


def mesh(split: dict[str, int]) -> jax.sharding.Mesh:
    return sharding.make_mesh(tuple(split.get(axis, 1) for axis in sharding.MESH_AXES))
