"""XLA flags that the TPU compiler needs to compile our programs, by generation.

Used by training, by preflight, and by Pathways' proxy, which takes them as its own. Left out: flags that make programs
faster. Those are the user's (`spec.env`, LIBTPU_INIT_ARGS), which override these.
"""

from __future__ import annotations

from ptapi.accelerators import resolve

REQUIRED_FLAGS: dict[str, dict[str, str]] = {
    "tpu7x": {"xla_tpu_enable_sparse_core_collective_offload_all_reduce": "false"}
}
"""tpu7x: when sparse cores may sum over devices, libtpu 0.0.42 aborts on the smallest of our train steps
(`offload_collective_strategies.cc: Check failed: std::abs(inc) < core_count()`)."""


def init_args(accelerator: str, current: str = "") -> str:
    """Return LIBTPU_INIT_ARGS for this accelerator type. current: its present value, whose flags override these."""
    return " ".join([*arguments(resolve(accelerator).generation), *current.split()])


def arguments(generation: str) -> list[str]:
    """Return the flags as command-line arguments: `--name=value`."""
    return [f"--{name}={value}" for name, value in REQUIRED_FLAGS.get(generation, {}).items()]
