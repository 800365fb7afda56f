"""Flags without which the TPU compiler cannot compile our programs, by generation: for training, for preflight,
and for Pathways' proxy, which takes them as its own.

Left out: flags that make programs faster. Those are the user's (`spec.env`, LIBTPU_INIT_ARGS), whose word is the last.
"""

from __future__ import annotations

from ptapi.accelerators import resolve

NEEDED: dict[str, dict[str, str]] = {"tpu7x": {"xla_tpu_enable_sparse_core_collective_offload_all_reduce": "false"}}
"""tpu7x: where sparse cores may sum over devices, libtpu 0.0.42 ends itself on the smallest of our train steps
(`offload_collective_strategies.cc: Check failed: std::abs(inc) < core_count()`)."""


def init_args(accelerator: str, given: str = "") -> str:
    """LIBTPU_INIT_ARGS for this type of accelerator. given: what it is already; of two flags the last one counts."""
    return " ".join([*arguments(resolve(accelerator).generation), *given.split()])


def arguments(generation: str) -> list[str]:
    """As a command takes them: `--name=value`."""
    return [f"--{name}={value}" for name, value in NEEDED.get(generation, {}).items()]
