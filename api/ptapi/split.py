"""Which share of a job's chips samples (`rollout.placement: disaggregated`), and which trains.

Chips are cut where it costs no link that either side needs: between slices where there are several, else across the
longest side of the slice's shape, so that both parts are boxes of chips. Virtual devices are cut anywhere. The first
parts train, the last ones sample. Left out: which mesh each side makes of its devices (`pttrainer.placement`).
"""

from __future__ import annotations

from typing import NamedTuple

from ptapi.accelerators import Slice, resolve
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec

SHARE_FIELD = "spec.rollout.samplerShare"
PLACEMENT_FIELD = "spec.rollout.placement"
NEAR = 0.02
"""How far a share may be from a whole number of parts, so that 0.33 is a third."""


class Split(NamedTuple):
    """parts: into how many equal parts the chips can be cut; sampling: how many of them sample; slices: of the job."""

    parts: int
    sampling: int
    slices: int
    devices_of_part: int

    @property
    def sampler_devices(self) -> int:
        """JAX devices that sample."""
        return self.sampling * self.devices_of_part

    @property
    def trainer_devices(self) -> int:
        """JAX devices that train."""
        return (self.parts - self.sampling) * self.devices_of_part

    @property
    def trainer_slices(self) -> int:
        """Slices that train; 1 where a slice is cut."""
        return 1 if self.slices == 1 else self.parts - self.sampling

    @property
    def sampler_slices(self) -> int:
        """Slices that sample; 1 where a slice is cut."""
        return 1 if self.slices == 1 else self.sampling


def split_of(spec: PostTrainJobSpec) -> Split | None:
    """How the job's chips are split; None where the same chips train and sample. Raises SpecError."""
    if spec.rollout.placement == "colocated":
        return None
    slice_ = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    if slice_.total_vms > 1 and spec.pathways.enabled is not True:
        raise SpecError([_many_controllers(slice_)])
    parts = slice_.slices if slice_.slices > 1 else _sides(slice_)
    if parts == 1:
        raise SpecError([_too_small(slice_)])
    share = spec.rollout.sampler_share
    sampling = parts // 2 if share is None else round(share * parts)
    if share is not None and (not 0 < sampling < parts or abs(share * parts - sampling) > NEAR):
        raise SpecError([_uneven(share, parts, slice_)])
    return Split(parts, sampling, slice_.slices, slice_.total_devices // parts)


def _sides(slice_: Slice) -> int:
    """Into how many parts one slice can be cut."""
    return slice_.chips if slice_.is_cpu else max(int(side) for side in slice_.topology.split("x"))


def _uneven(share: float, parts: int, slice_: Slice) -> Finding:
    what = "slices" if slice_.slices > 1 else "virtual devices" if slice_.is_cpu else "chips along its longest side"
    sampling = range(1, parts) if parts <= 8 else (1, parts // 4, parts // 2, parts - 1)
    shares = ", ".join(f"{k / parts:.3g}" for k in sampling)
    return Finding(
        SHARE_FIELD,
        f"{share:g}",
        f"a multiple of 1/{parts} between 0 and 1, because {slice_.describe()} has {parts} {what}: {shares}",
    )


def _too_small(slice_: Slice) -> Finding:
    return Finding(
        PLACEMENT_FIELD,
        "disaggregated",
        f"colocated, because {slice_.describe()} cannot be split into chips that train and chips that sample",
        "a larger accelerator.type, or more slices",
    )


def _many_controllers(slice_: Slice) -> Finding:
    hint = "pathways: {enabled: true}" if slice_.pathways_instance_type else "an accelerator of one host"
    return Finding(
        PLACEMENT_FIELD,
        "disaggregated",
        f"colocated, because one process must drive all chips to move weights between them, and {slice_.describe()} is "
        f"{slice_.total_vms} hosts with a trainer on each",
        hint,
    )
