"""The split of a job's chips between training and sampling (`rollout.placement: disaggregated`).

The cut costs no link that either side needs: it lies between slices if there are several, else across the longest side
of the slice's shape, between hosts, so that both parts are valid shapes. Virtual devices and GPUs can be cut anywhere.
The first parts train, the last ones sample. Left out: each side's mesh (`pttrainer.rollout.disaggregated.placement`).
"""

from dataclasses import replace
from typing import NamedTuple

from ptapi.accelerators import Slice, resolve
from ptapi.accelerators.one_process import uses_pathways
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec

SHARE_FIELD = "spec.rollout.samplerShare"
PLACEMENT_FIELD = "spec.rollout.placement"
SHARE_TOLERANCE = 0.02
"""Tolerance between a share and a whole number of parts, so that 0.33 counts as a third."""
HOST_SHAPE = (2, 2, 1)
"""Shape of one host's chips, in a slice of several hosts."""


class Split(NamedTuple):
    """The chips of each side, as if requested separately."""

    trainer: Slice
    sampler: Slice


def split_of(spec: PostTrainJobSpec) -> Split | None:
    """Return the split of the job's chips, or None if the same chips train and sample, or pods of their own sample.

    Raises SpecError.
    """
    if spec.rollout.placement != "disaggregated":
        return None
    slice_ = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    if slice_.total_vms > 1 and not uses_pathways(spec):
        raise SpecError([_many_controllers(slice_)])
    parts = parts_of(slice_)
    if parts == 1:
        raise SpecError([_too_small(slice_)])
    share = spec.rollout.sampler_share
    sampling = parts // 2 if share is None else round(share * parts)
    if share is not None and (not 0 < sampling < parts or abs(share * parts - sampling) > SHARE_TOLERANCE):
        raise SpecError([_uneven(share, parts, slice_)])
    return Split(_subset(slice_, parts - sampling, parts), _subset(slice_, sampling, parts))


def longest_side(topology: str) -> int:
    """Return the axis where a shape is cut: its longest side.

    Of equal sides it is the last one, along which devices are numbered last.
    """
    sides = _sides(topology)
    return max(range(len(sides)), key=lambda axis: (sides[axis], axis))


def _sides(topology: str) -> list[int]:
    return [int(side) for side in topology.split("x")]


def parts_of(slice_: Slice) -> int:
    """Return the number of equal parts into which the chips can be cut."""
    if slice_.slices > 1:
        return slice_.slices
    if not slice_.topology:
        return slice_.chips
    axis = longest_side(slice_.topology)
    return _sides(slice_.topology)[axis] // (HOST_SHAPE[axis] if slice_.vms > 1 else 1)


def _subset(slice_: Slice, count: int, parts: int) -> Slice:
    """Return the slice reduced to `count` of its parts."""
    if slice_.slices > 1:
        return replace(slice_, slices=count)
    sides = _sides(slice_.topology) if slice_.topology else []
    if sides:
        axis = longest_side(slice_.topology)
        sides[axis] = sides[axis] * count // parts
    return replace(
        slice_,
        topology="x".join(map(str, sides)),
        chips=slice_.chips * count // parts,
        tensorcores=slice_.tensorcores * count // parts,
        vms=max(1, slice_.vms * count // parts),
    )


def _uneven(share: float, parts: int, slice_: Slice) -> Finding:
    sides = "hosts" if slice_.vms > 1 else "chips"
    unit = (
        "slices"
        if slice_.slices > 1
        else "virtual devices"
        if slice_.is_cpu
        else "GPUs"
        if slice_.is_gpu
        else f"{sides} along its longest side"
    )
    sampling = range(1, parts) if parts <= 8 else (1, parts // 4, parts // 2, parts - 1)
    shares = ", ".join(f"{k / parts:.3g}" for k in sampling)
    return Finding(
        SHARE_FIELD,
        f"{share:g}",
        f"a multiple of 1/{parts} between 0 and 1, because {slice_.describe()} has {parts} {unit}: {shares}",
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
