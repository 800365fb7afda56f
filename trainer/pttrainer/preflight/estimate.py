"""How fast a step can be at best, and what the run costs: a roofline of arithmetic, memory and network.

The slowest of three limits: FLOPs at the chip's peak, HBM traffic at its bandwidth, collectives at the links'. Real
steps are slower, by what does not overlap and by how far kernels are from the peak; so time is "at least" and tokens
per second "at most". Rollouts and rewards are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pttrainer import flops
from pttrainer.batch import Batch
from pttrainer.preflight.collectives import Traffic
from pttrainer.preflight.subject import Subject, bytes_per_device

RECOMPUTED = 4 / 3
"""FLOPs with full remat over those without: one more forward pass."""


@dataclass(frozen=True)
class Estimate:
    """Of one optimizer step. None: nobody knows (no compiled program, no published bandwidth, no price)."""

    flops: float
    bound: str
    seconds: float
    compute_seconds: float
    hbm_seconds: float
    ici_seconds: float | None
    dcn_seconds: float | None
    tokens_per_second_per_chip: float
    steps: int | None
    chip_hours: float | None
    cost: float | None


def estimate(of: Subject, traffic: list[Traffic] | None, price: float | None = None) -> Estimate:
    """traffic: of the compiled step, per device. price: of a chip-hour."""
    slice_, training = of.slice, of.spec.training
    per_chip = slice_.jax_devices_per_chip
    total = step_flops(of)
    hardware = total * (RECOMPUTED if of.model.remat == "full" else 1.0)
    assert slice_.peak_bf16_tflops is not None
    assert slice_.hbm_gbytes_per_s is not None
    compute = hardware / (slice_.peak_bf16_tflops * 1e12 * of.training_slice.total_chips)
    hbm = _hbm_bytes(of) * per_chip / (slice_.hbm_gbytes_per_s * 1e9)
    ici = _network(traffic, False, None if slice_.ici_gbytes_per_s is None else slice_.ici_gbytes_per_s / 2, per_chip)
    dcn = _network(traffic, True, None if slice_.dcn_gbits_per_s is None else slice_.dcn_gbits_per_s / 8, per_chip)
    limits = {"arithmetic": compute, "memory": hbm, "network": (ici or 0.0) + (dcn or 0.0)}
    bound = max(limits, key=lambda name: limits[name])
    seconds = limits[bound]
    tokens = training.batch_size * training.sequence_length
    hours = None if training.steps is None else seconds * training.steps * slice_.total_chips / 3600
    return Estimate(
        flops=total,
        bound=bound,
        seconds=seconds,
        compute_seconds=compute,
        hbm_seconds=hbm,
        ici_seconds=ici,
        dcn_seconds=dcn,
        tokens_per_second_per_chip=tokens / seconds / slice_.total_chips,
        steps=training.steps,
        chip_hours=hours,
        cost=None if hours is None or price is None else hours * price,
    )


def step_flops(of: Subject) -> float:
    """Of a batch of full rows, each one example: the most that this shape can ask for."""
    row = np.ones((1, of.spec.training.sequence_length), np.int32)
    counts = row.astype(np.float32)
    batch = Batch(row, row, row, row, counts, counts)
    taught = 0.0 if of.teacher is None else flops.of_step(of.teacher.config, None, batch) / 3  # forward alone
    return of.spec.training.batch_size * (flops.of_step(of.config, of.model.adapters, batch) + taught)


def _hbm_bytes(of: Subject) -> float:
    """Per device: state read and written, weights read in each of three passes of every micro-batch."""
    held = of.held
    state, frozen = bytes_per_device(held.state), bytes_per_device(held.frozen)
    passes = 3 * of.spec.training.batch_size // of.micro_rows
    weights = of.config.parameters * 2 / of.axis("tensor") / of.axis("expert")
    return 2.0 * state + frozen + passes * weights


def _network(traffic: list[Traffic] | None, slow: bool, gbytes_per_s: float | None, per_chip: int) -> float | None:
    """Seconds: each direction of a chip's links carries half of the published number."""
    if traffic is None or gbytes_per_s is None:
        return None
    return sum(one.bytes for one in traffic if one.between_slices is slow) * per_chip / (gbytes_per_s * 1e9)
