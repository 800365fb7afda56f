"""The TPU compiler on the job's own train step: does it fit, and with how much memory.

Two levels. `fast` (no optimisation) refuses what is hopeless and costs seconds; `full` is the compile that training
uses. A step that does not fit is refused by the compiler with the memory that it would need. Whether it compiles
decides, not the sum of its parts: the compiler spends free memory on speed, and recomputes when memory is short.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import jax

from pttrainer import sharding
from pttrainer.preflight import chips
from pttrainer.preflight.subject import Subject, inputs

Level = Literal["fast", "full"]

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_AMOUNT = r"([0-9.]+)([KMGT]?)i?B?"
_NEEDS = re.compile(rf"(?:required[^()]*\(|Used ){_AMOUNT}\)?")
_HAS = re.compile(rf"(?:exceeds available HBM \(|of ){_AMOUNT}")


@dataclass(frozen=True)
class Compiled:
    """What the compiler said of one program; bytes are per device. has: what it offers, where it refused."""

    fits: bool
    seconds: float
    peak: int
    arguments: int = 0
    temporaries: int = 0
    output: int = 0
    has: int | None = None
    text: str = ""


def train_step(of: Subject, level: Level) -> Compiled:
    """Compiles the step that this job trains with. Nothing is allocated or run."""
    mesh = sharding.make_mesh(of.shape, chips.devices(of.slice))
    with jax.set_mesh(mesh), _level(level):
        started = time.monotonic()
        lowered = of.program.train_step(of.program.layout(mesh)).lower(*inputs(of, mesh))
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            needs = out_of_memory(str(error))
            if needs is None:
                raise
            return Compiled(False, time.monotonic() - started, needs[0], has=needs[1])
        return _measured(compiled, time.monotonic() - started)


def out_of_memory(message: str) -> tuple[int, int] | None:
    """(needs, has) in bytes, from the compiler's refusal; None where the message is about something else."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    needs, has = _NEEDS.search(message), _HAS.search(message)
    return None if needs is None or has is None else (_bytes(needs), _bytes(has))


def _measured(compiled: Any, seconds: float) -> Compiled:
    memory = compiled.memory_analysis()
    return Compiled(
        True,
        seconds,
        peak=int(memory.peak_memory_in_bytes),
        arguments=int(memory.argument_size_in_bytes),
        temporaries=int(memory.temp_size_in_bytes),
        output=int(memory.output_size_in_bytes),
        text=compiled.as_text(),
    )


@contextmanager
def _level(level: Level) -> Iterator[None]:
    before = jax.config.values["jax_optimization_level"]
    jax.config.update("jax_optimization_level", "O0" if level == "fast" else before)
    try:
        yield
    finally:
        jax.config.update("jax_optimization_level", before)


def _bytes(match: re.Match[str]) -> int:
    return int(float(match[1]) * _UNITS[match[2]])
