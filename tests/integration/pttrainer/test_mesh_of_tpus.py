"""The mesh on TPUs that are not here: slices, and axes that are a part of a torus's side. Needs libtpu (`make aot`)."""

import importlib.util

import pytest

from ptapi import accelerators
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.runtime.distributed import sharding

if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed; hint: make aot", allow_module_level=True)

tpu_topology.prepare_environment()


def test_copies_of_the_model_go_to_slices() -> None:
    mesh = sharding.make_mesh((2, 16), tpu_topology.devices(accelerators.resolve("v5e-16", None, 2)))
    slices = [{device.slice_index for device in copy.ravel()} for copy in mesh.devices]
    assert slices == [{0}, {1}]


@pytest.mark.parametrize(
    ("type", "shape"), [("v6e-64", (1, 16, 4)), ("v6e-16", (1, 8, 2)), ("v5p-64", (1, 8, 1, 1, 4))]
)
def test_an_axis_may_be_a_part_of_a_side(type: str, shape: tuple[int, ...]) -> None:
    devices = tpu_topology.devices(accelerators.resolve(type))
    mesh = sharding.make_mesh(shape, devices)
    assert {device.id for device in mesh.devices.ravel()} == {device.id for device in devices}
    assert mesh.devices.shape[: len(shape)] == shape
