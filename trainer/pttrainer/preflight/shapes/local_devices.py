"""This machine's devices in place of the job's chips (`--here`): for GPUs, and for tries on a CPU.

No compiler for GPUs works without one, so only visible ones can be judged: the job's programs are compiled for them
like a local run would (`python -m pttrainer run` takes all devices, whatever the job names), and their
`memory_analysis` is compared with what JAX's allocator gives a program. CPU devices share the machine's memory.

Left out: other machines than this one; step time (no table of rates is published); changes of chips.
"""

import os
from dataclasses import dataclass

from ptapi.accelerators import Slice

NOT_AHEAD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Otherwise JAX takes most of a GPU when it starts, and both this process and the compiler's start it. The memory of a
program is the same either way (`XLA_PYTHON_CLIENT_MEM_FRACTION`)."""


@dataclass(frozen=True, kw_only=True)
class LocalDevices(Slice):
    """All devices that JAX sees, as if they were a slice of chips. memory: bytes of one that a program may use."""

    memory: int = 0


def prepare_environment() -> None:
    """Set up the environment; must run before jax is imported."""
    os.environ |= NOT_AHEAD


def detect() -> LocalDevices:
    """Return the visible devices; starts JAX's backend."""
    import jax

    devices = jax.devices()
    kind, count, stats = devices[0].device_kind, len(devices), devices[0].memory_stats() or {}
    shared = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // count
    return LocalDevices(
        name=kind,
        generation=devices[0].platform,
        platform=devices[0].platform,
        slices=1,
        chips=count,
        tensorcores=count,
        vms=1,
        chips_per_vm=count,
        memory=int(stats.get("bytes_limit", shared)),
    )
