"""Absent TPUs: their name for the compiler, the memory of a program, and their devices.

Or local devices (`local_devices`), which know both themselves. The TPU compiler comes with libtpu (`pip install
'posttrain[tpu-compiler]'`); it needs no TPU, no cloud and no root. Left out: generations that libtpu does not know;
then the formula alone answers.
"""

import importlib.metadata
import math
import os
from typing import Any

from ptapi.accelerators import Slice, table
from ptapi.accelerators.trainer_sampler_split import HOST_SHAPE
from pttrainer.errors import ConfigError
from pttrainer.preflight.shapes.local_devices import LocalDevices

GIB = 2**30

USABLE_GIB: dict[str, float] = {"v4": 30.75, "v5e": 15.75, "v5p": 95.74, "v6e": 31.25, "tpu7x": 94.75}
"""HBM of one JAX device (a chip, half of a tpu7x) that a program may use, from the compiler's own refusals."""
USABLE_GIB |= {name: facts["usableGib"] for name, facts in table().items() if facts["usableGib"] is not None}
"""And of GPUs: JAX's share of the memory that their driver reports."""

CUBE, POD = 4, 16
"""Chips of a cube's side, whose faces optical switches join (v4, v5p, tpu7x), and of a pod's (v5e, v6e)."""

LIBTPU_OF_JAX = {"0.10": "0.0.42"}
"""The libtpu series that `jax[tpu]` of a series pins. Another one may compile differently from training."""


class NotJudgedError(ConfigError):
    """The job is valid, but preflight does not support its kind."""


def usable_bytes(slice_: Slice) -> int:
    """Return the memory of one device that a program may use; raise ConfigError if there is no TPU to ask about."""
    if isinstance(slice_, LocalDevices):
        return slice_.memory
    if slice_.generation not in USABLE_GIB:
        raise NotJudgedError(
            f"spec.accelerator.type: {slice_.name}: preflight knows TPUs and GPUs only; accepted for example: "
            "v6e-16, h100-8; hint: --here asks about the devices of this machine"
        )
    return int(USABLE_GIB[slice_.generation] * GIB)


def topology_name(slice_: Slice) -> str:
    """Return libtpu's name: `v5p:4x4x4`."""
    return f"{slice_.generation}:{slice_.topology}"


def topology_options(slice_: Slice) -> dict[str, Any]:
    """Return libtpu's options besides the name."""
    options: dict[str, Any] = {}
    if slice_.chips < math.prod(HOST_SHAPE):
        sides = [int(side) for side in slice_.topology.split("x")]
        options["chips_per_host_bounds"] = (*sides, 1, 1)[:3]
    if slice_.generation == "v4":
        options["chip_config_name"] = "megacore"  # else two devices per chip, which is not how v4 is used
    if slice_.slices > 1:
        options["num_slices"] = slice_.slices
    if any(wrapped := _wrapped([int(side) for side in slice_.topology.split("x")])):
        options["wrap"] = wrapped
    return options


def _wrapped(sides: list[int]) -> tuple[bool, ...]:
    """Return whether the links of each dimension are rings.

    Slices of whole cubes of 4 x 4 x 4 are tori; on a flat chip's pod, a side of all its 16 chips is a ring. Without
    them the compiler makes gathers of a torus sums of all devices' padded parts.
    """
    if len(sides) == 3:
        return (all(side % CUBE == 0 for side in sides),) * 3
    return (*(side == POD for side in sides), False)


def devices(slice_: Slice) -> Any:
    """Return the devices of all slices, for a mesh to compile for."""
    if isinstance(slice_, LocalDevices):
        import jax

        return jax.devices()
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="tpu", topology_name=topology_name(slice_), **topology_options(slice_)
    )
    return described.devices


def why_no_compiler(slice_: Slice) -> str | None:
    """Return why only the formula can answer; None if the compiler can be asked, which may not know these chips."""
    if isinstance(slice_, LocalDevices):
        return None
    if slice_.is_gpu:
        return "no compiler for GPUs works without one; hint: ptctl plan --here, on a machine with such a GPU"
    try:
        libtpu, jax = importlib.metadata.version("libtpu"), importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return "libtpu, the TPU compiler, is not installed; hint: pip install 'posttrain[tpu-compiler]'"
    expected = LIBTPU_OF_JAX.get(".".join(jax.split(".")[:2]))
    if expected is None or not libtpu.startswith(f"{expected}."):
        wanted = f"libtpu {expected}.x" if expected else "a jax of series " + ", ".join(LIBTPU_OF_JAX)
        return f"libtpu {libtpu} does not match jax {jax}; accepted: {wanted}"
    return None


def why_unknown(slice_: Slice) -> str | None:
    """Return why the compiler cannot answer for these chips; None if it can. Imports jax and libtpu."""
    try:
        devices(slice_)
    except Exception as error:  # libtpu raises several kinds; all mean that it cannot answer
        libtpu = importlib.metadata.version("libtpu")
        return f"libtpu {libtpu} does not know {topology_name(slice_)}: {str(error).splitlines()[0]}"
    return None


def prepare_environment() -> None:
    """Set up several compilers side by side, without metadata server or TPU; must run before jax is imported."""
    os.environ |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
