"""Memory of the hosts: what waits there for the backward pass (`training.remat: offload-…`).

Beside it a host holds a copy of its chips' training state while a checkpoint is written. Left out: data, rewards and
the compiler, a few GiB that the rest of a machine (`USED`) covers.
"""

from ptapi.accelerators import Slice
from pttrainer.errors import ConfigError
from pttrainer.preflight.memory import layer_memory
from pttrainer.preflight.shapes import device_bytes
from pttrainer.preflight.shapes.job_shapes import JobShapes

GB, GIB = 10**9, 2**30
USED = 0.85
"""Share of a machine that a trainer asks for (`ptoperator.render.pods.resources`)."""
BYTES_PER_S = 16e9
"""Between a chip and its host, each way: that of v4 (jax-ml.github.io/scaling-book/tpus), as no other is published."""


def check(of: JobShapes) -> None:
    """Raise ConfigError if a host has no room for what its chips hand to it."""
    held, room = _held(of), _room(of.training_slice)
    if held and room is not None and held > room:
        raise ConfigError(
            f"spec.training.remat: {of.structure.remat}: with a checkpoint's copy, {held / GIB:.0f} GiB in each host's "
            f"memory, where {of.training_slice.machine_type} has {room / GIB:.0f}; accepted: full, "
            "or a smaller microBatchSize"
        )


def note(of: JobShapes) -> str | None:
    """Return what waits in host memory, in words; None if nothing does."""
    sent, slice_ = layer_memory.on_host(of), of.training_slice
    if not sent:
        return None
    has = "a size that no table has" if slice_.host is None else f"{slice_.host.memory_gb * GB / GIB:.0f} GiB"
    seconds = sent * slice_.jax_devices_per_chip * (of.spec.training.batch_size // of.micro_rows) / BYTES_PER_S
    return (
        f"activations wait in host memory: {sent * _devices(slice_) / GIB:.0f} GiB on each host, which has {has}; "
        f"the way there and back, {seconds:.2g} s each at 16 GB/s in a step, is not counted"
    )


def _held(of: JobShapes) -> int:
    """Return bytes of one host: what waits, and a copy of the state; 0 if nothing waits."""
    waiting = layer_memory.on_host(of)
    return (waiting + device_bytes.total(of.arguments.state)) * _devices(of.training_slice) if waiting else 0


def _room(slice_: Slice) -> int | None:
    return None if slice_.host is None else int(USED * slice_.host.memory_gb * GB)


def _devices(slice_: Slice) -> int:
    return slice_.chips_per_vm * slice_.jax_devices_per_chip
