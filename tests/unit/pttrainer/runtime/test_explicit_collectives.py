"""Collectives that are written out give the products and look-ups of one device, and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pttrainer.runtime.distributed import explicit_collectives as explicit
from pttrainer.runtime.distributed import sharding

MESHES = [{"fsdp": 8}, {"data": 2, "fsdp": 4}, {"fsdp": 4, "expert": 2}]
X, W, PULL = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(16, 64), (64, 32), (16, 32)]))
TABLE, TOKENS = jax.random.normal(jax.random.key(3), (50, 16)), jax.random.randint(jax.random.key(4), (16, 5), 0, 50)


@pytest.mark.parametrize("split", MESHES, ids=str)
@pytest.mark.parametrize("axes", [("embed", "mlp"), ("mlp", "embed")])
def test_a_product_and_its_gradients_are_those_of_one_device(split: dict[str, int], axes: tuple[str, str]) -> None:
    def pulled(x: Array, w: Array) -> Array:
        return jnp.sum(explicit.product(x, w, axes) * PULL)

    with jax.set_mesh(mesh(split)):
        of_x, of_w = jax.jit(jax.grad(pulled, (0, 1)))(X, W)
    np.testing.assert_allclose(of_x, PULL @ W.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, X.T @ PULL, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [("embed", "heads"), ("embed", "kv_heads"), ("heads", "embed")])
def test_so_are_those_of_a_matrix_that_is_cut_into_heads(axes: tuple[str, str]) -> None:
    rows = X.reshape(8, 2, 64)

    def pulled(x: Array, w: Array) -> Array:
        return jnp.sum(explicit.product(x, w, axes, head_dim=8) * PULL.reshape(8, 2, 32))

    with jax.set_mesh(mesh({"fsdp": 8})):
        of_x, of_w = jax.jit(jax.grad(pulled, (0, 1)))(rows, W)
    np.testing.assert_allclose(of_x.reshape(16, 64), PULL @ W.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, X.T @ PULL, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", MESHES, ids=str)
def test_so_are_rows_of_a_table_in_the_compute_format_and_its_gradient_in_its_own(split: dict[str, int]) -> None:
    pull = jax.random.normal(jax.random.key(5), (16, 5, 16))

    def pulled(table: Array, dtype: str) -> Array:
        return jnp.sum(explicit.look_up(table, TOKENS, dtype).astype(jnp.float32) * pull)

    with jax.set_mesh(mesh(split)):
        looked_up = jax.jit(lambda table: explicit.look_up(table, TOKENS, "bfloat16"))(TABLE)
        gradient = jax.jit(jax.grad(lambda table: pulled(table, "float32")))(TABLE)
    assert looked_up.dtype == jnp.bfloat16
    np.testing.assert_array_equal(looked_up, TABLE.astype(jnp.bfloat16)[TOKENS])
    np.testing.assert_allclose(gradient, jnp.zeros_like(TABLE).at[TOKENS].add(pull), rtol=1e-5, atol=1e-5)


def test_the_compiler_chooses_on_cpus_and_on_meshes_that_split_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.set_mesh(mesh({"fsdp": 8})):
        assert not explicit.are_used(16)
        monkeypatch.setattr(explicit, "PLATFORMS", ("cpu",))
        assert explicit.are_used(16)
        assert not explicit.are_used(12)
    for split in ({"data": 8}, {"fsdp": 4, "tensor": 2}, {"fsdp": 4, "sequence": 2}):
        with jax.set_mesh(mesh(split)):
            assert not explicit.are_used(16)


def mesh(split: dict[str, int]) -> jax.sharding.Mesh:
    return sharding.make_mesh(tuple(split.get(axis, 1) for axis in sharding.MESH_AXES))
