"""The devices of this machine in place of the chips that a job names (`--here`): for GPUs, and for tries on a CPU.

There is no compiler for GPUs without one, so only those that are visible can be judged: the job's programs are compiled
for them as a run here would (`python -m pttrainer run` takes all devices, whatever the job names), and their
`memory_analysis` is held against what JAX's allocator gives a program. CPU devices share the machine's memory.

Left out: other machines than this one; how long a step takes (nobody publishes that in one table); changes of chips.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ptapi.accelerators import Slice

NOT_AHEAD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Else JAX takes most of a GPU when it starts, and this process and the one that compiles both start it. What a program
may use is the same either way (`XLA_PYTHON_CLIENT_MEM_FRACTION`)."""


@dataclass(frozen=True, kw_only=True)
class Here(Slice):
    """All devices that JAX sees, as if they were a slice of chips. memory: bytes of one that a program may use."""

    memory: int = 0


def prepare_environment() -> None:
    """Must run before jax is imported."""
    os.environ |= NOT_AHEAD


def look() -> Here:
    """What is visible now; starts JAX's backend."""
    import jax

    devices = jax.devices()
    kind, count, stats = devices[0].device_kind, len(devices), devices[0].memory_stats() or {}
    shared = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // count
    return Here(
        name=kind,
        generation=devices[0].platform,
        slices=1,
        chips=count,
        tensorcores=count,
        vms=1,
        chips_per_vm=count,
        memory=int(stats.get("bytes_limit", shared)),
    )
