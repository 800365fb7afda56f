"""A sampler's products of few rows by our kernel (interpreted) are those of `jax.lax.ragged_dot`."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.models.layers.mixture import few_rows
from pttrainer.models.layers.mixture import grouped_product as module
from pttrainer.models.layers.mixture.grouped_product import grouped_product

R, X, Y = 37, 24, 300
SIZES = [
    (7, 9, 3, 12, 6), (0, 0, 15, 11, 11), (8, 0, 16, 0, 5), (3, 0, 5, 1, 2), (0, 0, 0, 0, 37), (37, 0, 0, 0, 0),
    (1, 0, 0, 0, 16), (0, 0, 0, 0, 0), (0, 20, 0, 0, 0),
]  # fmt: skip
V6E, V5P, V4 = "TPU v6 lite", "TPU v5", "TPU v4"


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("is_turned", [False, True], ids=["as declared", "turned"])
def test_each_row_is_multiplied_with_the_matrix_of_its_group(
    is_turned: bool, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of any size, empty ones at any place, and rows behind them all; in tiles of eight rows."""
    monkeypatch.setattr(few_rows, "ROWS", 8)
    x, matrices = random(R, X), random(5, X, Y, seed=1)
    stored = matrices.swapaxes(1, 2) if is_turned else matrices
    ours = jax.jit(partial(few_rows.product, is_turned=is_turned, cores=cores, interpret=True))
    for sizes in SIZES:
        of = np.array(sizes, np.int32)
        behind = np.where(np.arange(R)[:, None] < of.sum(), x, np.float32(np.nan))
        product = ours(behind, stored, of)
        assert product.shape == (R, Y)
        np.testing.assert_allclose(
            product[: of.sum()], jax.lax.ragged_dot(x, matrices, of)[: of.sum()], rtol=1e-5, atol=1e-5, err_msg=str(of)
        )


def test_the_matrix_of_an_empty_group_is_not_fetched() -> None:
    """What would be read of it, not numbers, is in no product, in whichever order groups come."""
    matrices = random(6, X, Y)
    matrices[[0, 2, 5]] = np.nan
    sizes = np.array([0, 9, 0, 20, 8, 0], np.int32)
    program = jax.make_jaxpr(partial(few_rows.product, is_turned=False, interpret=True))
    assert np.isfinite(few_rows.product(random(R, X), matrices, sizes, is_turned=False, interpret=True)).all()
    [call] = [one for one in program(random(R, X), matrices, sizes).eqns if "pallas" in one.primitive.name]
    fetched = jax.jit(few_rows.fetched)(sizes)
    assert call.invars[1].aval.shape == (6,)
    assert fetched.tolist() == [1, 1, 1, 3, 4, 4]


def test_numbers_of_16_bits_are_summed_in_32() -> None:
    x, matrices = (jnp.asarray(random(*shape), jnp.bfloat16) for shape in ((40, 512), (3, 512, 128)))
    sizes = np.array([11, 0, 29], np.int32)
    product = few_rows.product(x, matrices, sizes, is_turned=False, interpret=True)
    wanted = jax.lax.ragged_dot(x, matrices, sizes, preferred_element_type=jnp.float32)
    assert product.dtype == jnp.bfloat16
    np.testing.assert_allclose(product.astype(jnp.float32), wanted, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize(
    ("rows", "kind", "is_turned", "in_sampler", "kernel"),
    [
        (300, V6E, False, True, "few_rows_product"),
        (300, V5P, True, True, "few_rows_product"),
        (300, V4, True, True, "gmm"),
        (40000, V6E, True, True, "gmm"),
        (40000, V6E, False, True, None),
        (300, V6E, True, False, None),
    ],
)
def test_which_kernel_multiplies(
    rows: int, kind: str, is_turned: bool, in_sampler: bool, kernel: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler's few rows have ours; many rows the library's where memory has the matrices turned, XLA's elsewhere."""
    monkeypatch.setattr(module, "sharding", SimpleNamespace(chip=lambda: ("tpu", kind)))
    inputs = jax.ShapeDtypeStruct((rows, 128), jnp.float32), jax.ShapeDtypeStruct((5, 128, 256), jnp.float32)
    product = partial(grouped_product, is_turned=is_turned, in_sampler=in_sampler)
    program = str(jax.make_jaxpr(product)(*inputs, jax.ShapeDtypeStruct((5,), jnp.int32)))
    named = [name for name in ("few_rows_product", "gmm") if f"name={name}" in program]
    assert named == ([] if kernel is None else [kernel])


@pytest.mark.parametrize(
    ("rows", "X", "Y", "kind", "cores", "part"),
    [
        (512, 2048, 192, V6E, 1, 192),
        (1024, 2048, 192, V5P, 2, 128),
        (1024, 192, 2048, V5P, 2, 1024),
        (128, 7168, 2048, V6E, 1, 256),
        (128, 2048, 100, V5P, 2, 100),
        (1024, 7168, 2048, V5P, 2, 256),
    ],
)
def test_parts_of_a_matrix_fit_beside_the_rows(rows: int, X: int, Y: int, kind: str, cores: int, part: int) -> None:
    x = jax.ShapeDtypeStruct((rows, X), jnp.bfloat16)
    assert few_rows.fits(x, kind)
    matrices = jax.ShapeDtypeStruct((4, X, Y), jnp.bfloat16)
    program = jax.make_jaxpr(partial(few_rows.product, is_turned=False, cores=cores))
    [call] = [one for one in program(x, matrices, np.ones(4, np.int32)).eqns if "pallas" in one.primitive.name]
    blocks = [tuple(size for size in block.block_shape) for block in call.params["grid_mapping"].block_mappings]
    assert [getattr(one, "block_size", one) for one in blocks[-1]] == [rows, part]
    assert (rows * X + 2 * (X * part + rows * part)) * 2 <= few_rows.MEMORY_BYTES


def test_more_rows_than_a_core_holds_do_not_fit() -> None:
    assert not few_rows.fits(jax.ShapeDtypeStruct((4128, 2048), jnp.bfloat16), V6E)
    assert not few_rows.fits(jax.ShapeDtypeStruct((8, 128), jnp.float16), V6E)
    assert not few_rows.fits(jax.ShapeDtypeStruct((8, 32768), jnp.bfloat16), V6E)
