"""The mesh: `auto`, and what is refused."""

from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ptapi.spec import Parallelism
from pttrainer.errors import ConfigError
from pttrainer.models.shapes.parameters import decoding_axes
from pttrainer.models.vision import matrices
from pttrainer.runtime.distributed import logical_axes, sharding


@pytest.mark.parametrize(
    ("axes", "devices", "slices", "shape"),
    [
        ({}, 8, 1, (1, 8, 1, 1, 1)),
        ({}, 8, 2, (2, 4, 1, 1, 1)),
        ({"tensor": 2}, 8, 1, (1, 4, 2, 1, 1)),
        ({"data": 8}, 8, 1, (8, 1, 1, 1, 1)),
        ({"data": 2, "sequence": 2}, 8, 1, (2, 2, 1, 2, 1)),
        ({"expert": 4}, 8, 1, (1, 2, 1, 1, 4)),
        ({"fsdp": 2}, 8, 1, (4, 2, 1, 1, 1)),
        ({}, 1, 1, (1, 1, 1, 1, 1)),
    ],
)
def test_auto_fills_what_the_others_leave(
    axes: dict[str, int], devices: int, slices: int, shape: tuple[int, ...]
) -> None:
    assert logical_axes.mesh_shape(Parallelism(**axes), devices, slices) == shape


@pytest.mark.parametrize("axes", [{"tensor": 3}, {"data": 4, "fsdp": 4}, {"data": 16}])
def test_a_product_that_is_not_the_number_of_devices_is_refused_with_examples(axes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"number of devices, 8; accepted for example: .*fsdp: 8"):
        logical_axes.mesh_shape(Parallelism(**axes), 8)


def test_an_axis_that_does_not_divide_is_kept_whole() -> None:
    mesh = sharding.make_mesh((2, 2, 2, 1))
    abstract = {"even": jax.ShapeDtypeStruct((6, 4), np.float32), "odd": jax.ShapeDtypeStruct((7, 4), np.float32)}
    axes = {"even": ("vocab", "embed"), "odd": ("vocab", "embed")}
    specs = jax.tree.map(lambda s: s.spec, sharding.weight_shardings(mesh, abstract, axes))
    assert specs["even"] == PartitionSpec("tensor", ("fsdp", "expert", "sequence"))
    assert specs["odd"] == PartitionSpec(None, ("fsdp", "expert", "sequence"))


@pytest.mark.parametrize(
    ("platform", "shape", "axes", "matrix", "part"),
    [
        ("tpu", (1, 256, 1, 1, 1), ("layer", "embed", "mlp"), (42, 3584, 14_336), (42, 3584, 56)),
        ("tpu", (1, 256, 1, 1, 1), ("layer", "mlp", "embed"), (42, 14_336, 3584), (42, 56, 3584)),
        ("tpu", (2, 16, 1, 1, 4), ("embed", "mlp"), (4096, 14_336), (4096, 224)),
        ("cpu", (1, 256, 1, 1, 1), ("layer", "embed", "mlp"), (42, 3584, 14_336), (42, 14, 14_336)),
        ("tpu", (1, 64, 2, 1, 1), ("embed", "mlp"), (3584, 14_336), (56, 7168)),
        ("tpu", (1, 64, 1, 2, 1), ("embed", "mlp"), (3584, 14_336), (3584, 112)),
        ("tpu", (1, 1, 1, 8, 1), ("embed", "heads"), (4096, 4096), (512, 4096)),
        ("tpu", (1, 64, 1, 1, 1), ("embed", "mlp"), (2880, 2880), (45, 2880)),  # 45 of either fill no row of tiles
        ("tpu", (1, 128, 1, 1, 1), ("embed", "mlp"), (896, 4864), (7, 4864)),
        ("tpu", (1, 64, 1, 1, 1), ("embed", "heads"), (3584, 4096), (56, 4096)),
    ],
)
def test_on_tpus_the_inner_axis_of_an_mlp_is_split_where_its_parts_fill_rows_of_tiles(
    platform: str, shape: logical_axes.Shape, axes: logical_axes.Axes, matrix: tuple[int, ...], part: tuple[int, ...]
) -> None:
    assert part_of(matrix, platform, shape, axes) == part


@pytest.mark.parametrize(
    ("platform", "shape", "axes", "matrix", "part"),
    [
        ("tpu", (1, 256, 1, 1, 1), ("expert", "expert_embed", "mlp"), (256, 7168, 2048), (1, 7168, 2048)),
        ("tpu", (1, 64, 1, 1, 1), ("layer", "expert", "mlp", "expert_embed"), (3, 128, 704, 2816), (3, 2, 704, 2816)),
        ("tpu", (2, 64, 1, 1, 4), ("expert", "expert_embed", "mlp"), (256, 7160, 2048), (1, 7160, 2048)),
        ("tpu", (1, 128, 1, 1, 1), ("expert", "expert_embed", "mlp"), (128, 2880, 2880), (1, 2880, 2880)),
        ("tpu", (1, 64, 1, 1, 1), ("expert", "expert_embed", "mlp"), (32, 2880, 2880), (32, 45, 2880)),
        ("tpu", (1, 8, 1, 1, 1), ("layer", "expert", "expert_embed", "mlp"), (2, 128, 2880, 2880), (2, 16, 2880, 2880)),
        ("tpu", (1, 8, 1, 1, 1), ("layer", "expert", "mlp", "expert_embed"), (2, 120, 2880, 2880), (2, 120, 2880, 360)),
        # Whole ones of 2,816 x 704 would be kept turned.
        ("tpu", (1, 16, 1, 1, 1), ("expert", "expert_embed", "mlp"), (128, 2816, 704), (128, 176, 704)),
        ("tpu", (1, 16, 1, 1, 1), ("expert", "mlp", "expert_embed"), (128, 704, 2816), (128, 704, 176)),
        ("tpu", (1, 64, 1, 1, 1), ("expert", "expert_embed", "mlp"), (128, 2048, 768), (128, 32, 768)),
        ("tpu", (1, 256, 2, 1, 1), ("expert", "expert_embed", "mlp"), (256, 7168, 2048), (256, 28, 1024)),
        ("tpu", (1, 32, 1, 8, 1), ("expert", "expert_embed", "mlp"), (256, 7168, 2048), (1, 7168, 2048)),
        ("cpu", (1, 256, 1, 1, 1), ("expert", "expert_embed", "mlp"), (256, 7168, 2048), (256, 28, 2048)),
    ],
)
def test_on_tpus_experts_are_split_into_whole_ones_where_parts_of_their_matrices_would_be_narrow(
    platform: str, shape: logical_axes.Shape, axes: logical_axes.Axes, matrix: tuple[int, ...], part: tuple[int, ...]
) -> None:
    assert part_of(matrix, platform, shape, axes) == part


@pytest.mark.parametrize(
    ("shape", "matrix", "part"),
    [
        ((1, 1, 32, 1, 1), (256, 7168, 2048), (8, 7168, 2048)),  # 64 of 2,048 columns
        ((1, 2, 8, 1, 1), (128, 2816, 704), (16, 2816, 704)),
        ((1, 2, 4, 1, 2), (128, 2048, 192), (16, 2048, 192)),
        ((1, 2, 4, 1, 1), (128, 2048, 768), (128, 2048, 192)),
        ((1, 1, 16, 1, 1), (8, 4096, 1024), (8, 4096, 64)),  # fewer experts than devices
        ((1, 1, 4, 1, 2), (8, 4096, 1024), (4, 4096, 256)),
        ((1, 1, 8, 1, 1), (128, 2880, 2880), (16, 2880, 2880)),  # 128 fill the lanes that 360 and 2,880 do not
        ((1, 1, 4, 1, 1), (32, 2880, 2880), (32, 2880, 720)),
    ],
)
def test_a_samplers_experts_are_whole_where_parts_would_fill_no_lanes(
    shape: logical_axes.Shape, matrix: tuple[int, int, int], part: tuple[int, int, int]
) -> None:
    inner = decoding_axes(("expert", "expert_embed", "mlp"))
    assert part_of(matrix, "tpu", shape, inner) == part
    E, D, F = matrix
    assert part_of((E, F, D), "cpu", shape, decoding_axes(("expert", "mlp", "expert_embed"))) == (part[0], part[2], D)
    assert part_of((E, F), "tpu", shape, decoding_axes(("expert", "mlp"))) == (E // shape[-1], F)
    quantised = decoding_axes(("expert", "expert_embed", "mlp"), is_quantised=True)
    assert part_of(matrix, "tpu", shape, quantised) == (E // shape[-1], D, F // shape[2])


@pytest.mark.parametrize(
    ("axes", "matrix", "is_turned"),
    [
        (("expert", "mlp", "expert_embed"), (4, 768, 512), True),  # 64 of 512 columns fill half of their lanes
        (("expert", "mlp", "expert_embed"), (4, 768, 1024), False),
        (("expert", "expert_embed", "mlp"), (4, 512, 768), False),
        (("expert", "expert_embed", "mlp"), (4, 1024, 704), True),  # 704 columns would take 768, 128 rows fill lanes
    ],
)
def test_a_tpu_keeps_a_part_in_the_order_that_fills_tiles_better(
    axes: logical_axes.Axes, matrix: tuple[int, ...], is_turned: bool
) -> None:
    with jax.set_mesh(sharding.make_mesh((1, 8))):
        assert sharding.is_stored_turned(axes, matrix) == is_turned


def part_of(
    matrix: tuple[int, ...], platform: str, shape: logical_axes.Shape, axes: logical_axes.Axes
) -> tuple[int, ...]:
    sizes = dict(zip(logical_axes.MESH_AXES, shape, strict=True))
    split = logical_axes.weight_split(sizes, axes, matrix, platform)
    return tuple(n // logical_axes.pieces(sizes, by) for n, by in zip(matrix, split, strict=True))


def test_rows_are_split_over_data_and_fsdp() -> None:
    mesh = sharding.make_mesh((2, 2, 1, 2))
    assert sharding.fitting_batch_spec(mesh, (8, 16)) == PartitionSpec(("data", "fsdp", "expert"), "sequence")
    assert sharding.fitting_batch_spec(mesh, (3, 16)) == PartitionSpec(None, "sequence")


def test_images_stay_on_their_devices_and_a_towers_matrix_comes_to_them() -> None:
    """Unpinned, this product is a sum over devices of all devices' images. Images that do not divide evenly go free."""
    mesh = sharding.make_mesh((1, 4))
    matrix = jax.device_put(np.eye(8, dtype=np.float32), jax.NamedSharding(mesh, PartitionSpec("fsdp")))
    product = jax.jit(lambda x_IND, w_DD: matrices.product(cast(Any, SimpleNamespace(w=w_DD)), "w", x_IND))
    images = np.arange(4 * 3 * 8, dtype=np.float32).reshape(4, 3, 8)
    with jax.set_mesh(mesh):
        compiled = product.lower(jax.device_put(images, sharding.batch_sharding(mesh, images.shape)), matrix).compile()
        split, odd = product(images, matrix), product(images[:3], matrix)
    assert "all-reduce" not in compiled.as_text()
    assert split.addressable_shards[0].data.shape == (1, 3, 8)
    np.testing.assert_array_equal(split, images)
    np.testing.assert_array_equal(odd, images[:3])
