"""The device mesh of a job: its axes, and how `auto` sizes are resolved.

One rule, so that the check before chips are obtained and the trainer agree. Left out: whether the sizes fit the
devices, which each caller reports in its own words.
"""

import math

from ptapi.spec import Parallelism

MESH_AXES = ("data", "fsdp", "tensor", "sequence", "expert")


def axis_sizes(parallelism: Parallelism, devices: int, slices: int) -> dict[str, int]:
    """Return the sizes of MESH_AXES with `auto` resolved. Their product is `devices` only if the requested sizes fit.

    data: one copy of the model per slice (only gradients cross the slow network); fsdp: the rest; others: 1.
    """
    requested = {axis: getattr(parallelism, axis) for axis in MESH_AXES}
    fixed = {axis: size for axis, size in requested.items() if size != "auto"}
    sizes = {"tensor": 1, "sequence": 1, "expert": 1} | fixed
    remaining = devices // math.prod(sizes.values())
    if "data" not in sizes and "fsdp" not in sizes:
        sizes["data"] = slices if remaining % slices == 0 else 1
        remaining //= sizes["data"]
    return {axis: sizes.get(axis, remaining) for axis in MESH_AXES}
