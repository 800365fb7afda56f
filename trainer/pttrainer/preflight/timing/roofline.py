"""Minimal time of a program: the slowest of three limits.

FLOPs at the chip's peak, bytes of its memory at their bandwidth, collectives at the links'. Real programs are slower,
by what does not overlap and by how far kernels are from the peak.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ptapi.accelerators import Slice
from pttrainer.preflight.timing.collectives import Traffic


@dataclass(frozen=True)
class Roofline:
    """One run of a program. flops: of all chips; hbm_bytes: of a device. None: not compiled, or not published."""

    flops: float
    hbm_bytes: float
    bound: str
    seconds: float
    compute_seconds: float
    hbm_seconds: float
    ici_seconds: float | None
    dcn_seconds: float | None


def roofline(slice_: Slice, flops: float, hbm_bytes: float, traffic: Iterable[Traffic] | None) -> Roofline:
    """Return the roofline. flops: executed by the hardware, including recomputation; traffic: per device."""
    per_chip, chip = slice_.jax_devices_per_chip, slice_.chip
    assert chip is not None
    compute = flops / (chip.peak_bf16_tflops * 1e12 * slice_.total_chips)
    hbm = hbm_bytes * per_chip / (chip.hbm_gbytes_per_s * 1e9)
    sent = None if traffic is None else list(traffic)
    ici = _network(sent, False, None if chip.ici_gbytes_per_s is None else chip.ici_gbytes_per_s / 2, per_chip)
    dcn = _network(sent, True, None if chip.dcn_gbits_per_s is None else chip.dcn_gbits_per_s / 8, per_chip)
    limits = {"arithmetic": compute, "memory": hbm, "network": (ici or 0.0) + (dcn or 0.0)}
    bound = max(limits, key=lambda name: limits[name])
    return Roofline(flops, hbm_bytes, bound, limits[bound], compute, hbm, ici, dcn)


def _network(traffic: list[Traffic] | None, slow: bool, gbytes_per_s: float | None, per_chip: int) -> float | None:
    """Return seconds: each direction of a chip's links carries half of the published number."""
    if traffic is None or gbytes_per_s is None:
        return None
    return sum(one.bytes for one in traffic if one.between_slices is slow) * per_chip / (gbytes_per_s * 1e9)
