"""Minimal network time of moving a step's weights to the chips that sample (`rollout.disaggregated`).

Between two parts of a slice they cross the links that join the parts, between slices and to other pods the hosts'
network; then each sampling device gathers what it keeps over the sampler's own links. Colocated, nothing crosses a
network that the compiled programs do not show. Samplers with pods of their own are counted as if they were sent all
weights, by the leader's host, and to send them on to their other hosts meanwhile; they are sent the entries that
changed. Left out: latency, and the hosts that Pathways may send through.
"""

import math

from ptapi.accelerators import Slice
from ptapi.accelerators.trainer_sampler_split import longest_side
from pttrainer.preflight.shapes import rollout_shapes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.rollout.native.sizes import sampling_time

COMPUTE_BYTES = 2
"""Of an adapter's number in the sampler's format, bfloat16."""


def moved_bytes(of: JobShapes) -> int:
    """Return the bytes that a sampler is given after an update: all weights, or the adapters alone."""
    if of.structure.adapters is None:
        return of.structure.decoding_bytes
    return COMPUTE_BYTES * sum(one.size for one in of.structure.trained_weights.values())


def network_seconds(of: JobShapes) -> float:
    """Return the seconds on the network, 0 where no chips of their own sample or no rate is published."""
    if of.sampler is None:
        return 0.0
    moved = moved_bytes(of)
    if of.samplers is not None:
        sent = _over(moved * of.sampler_count, _dcn(of.slice, of.slice.chips_per_vm))  # of the leader's host
        sent_on = _over(moved * (of.samplers.vms - 1), _dcn(of.samplers, of.samplers.chips_per_vm))
        return max(sent, sent_on)
    training, sampling = of.training_slice, of.sampling_slice
    parts = math.gcd(training.total_devices, sampling.total_devices)
    crossing = moved * sampling.total_devices // parts  # each part goes to as many devices as keep a copy of it
    return _over(crossing, crossing_rate(of)) + _gathered(of, moved, parts)


def crossing_rate(of: JobShapes) -> float | None:
    """Return bytes per second from the training part to the sampling part; None: not published."""
    if of.slice.slices > 1:
        return _dcn(of.slice, min(of.training_slice.total_chips, of.sampling_slice.total_chips))
    link = sampling_time.link_rate(of.slice)
    if link is None:
        return None
    if not of.slice.topology:  # GPUs behind switches: each reaches all others at its full rate
        return link * min(of.training_slice.total_chips, of.sampling_slice.total_chips)
    sides = [int(side) for side in of.slice.topology.split("x")]
    axis = longest_side(of.slice.topology)
    rings = tpu_topology.topology_options(of.slice).get("wrap", ())
    ways = 2 if any(rings) and rings[axis] else 1  # a ring is cut twice
    return link * ways * math.prod(sides) / sides[axis]


def _gathered(of: JobShapes, moved: int, parts: int) -> float:
    """Return the seconds in which a sampling device receives what it keeps beyond its part."""
    chip = of.sampling_slice.chip
    if chip is None or chip.ici_gbytes_per_s is None:
        return 0.0
    there = rollout_shapes.sampler(of)
    kept = sampling_time.weights_bytes(of.structure, there.shape) * moved / of.structure.decoding_bytes
    received = max(0.0, kept - moved / parts) * of.sampling_slice.jax_devices_per_chip
    return received / (chip.ici_gbytes_per_s * 1e9 / 2)


def _dcn(slice_: Slice, chips: int) -> float | None:
    """Return bytes per second of the hosts of so many chips, one way."""
    chip = slice_.chip
    return None if chip is None or chip.dcn_gbits_per_s is None else chip.dcn_gbits_per_s * 1e9 / 8 * chips


def _over(sent: float, rate: float | None) -> float:
    return 0.0 if rate is None else sent / rate
