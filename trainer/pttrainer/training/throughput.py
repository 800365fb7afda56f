"""What the machine does while a run trains: seconds, throughput, utilisation, memory (docs/reference/metrics.md).

Numbers of a step only; nothing here touches a device or changes what is computed. Seconds are wall-clock seconds from
the end of one step to the end of the next.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ptapi import accelerators, run_directory
from ptapi.spec import Accelerator
from pttrainer.batch import Batch
from pttrainer.models import Model
from pttrainer.models.shapes import flops
from pttrainer.runtime.reporting.duty_cycle import duty_cycle

RECENT = 100
"""Recent steps that the percentiles cover."""
PERCENTILES = (50, 90, 99)
COMPILE = f"{run_directory.SECONDS}compile"
"""Compile time before a step is no part of the step's seconds."""
GIB = 2**30


class Work(NamedTuple):
    """What a step has to do: tokens, those that are learned, FLOPs; and seconds spent before it, by metric."""

    tokens: int
    learned: int
    flops: float
    spent: Mapping[str, float]


class Meter:
    """Measure the steps of this attempt. peak_flops: of all chips per second; None if it is unknown."""

    def __init__(self, model: Model, peak_flops: float | None) -> None:
        self._model, self._peak = model, peak_flops
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._spent: dict[str, float] = {}

    @contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Count the seconds spent inside towards the next `of_batch`."""
        began = time.monotonic()
        yield
        self._spent[on] = self._spent.get(on, 0.0) + time.monotonic() - began

    def of_batch(self, batch: Batch) -> Work:
        """Return the work of a step, and the seconds spent on preparing it."""
        tokens, learned = flops.tokens_of(batch), int((batch.mask_BT > 0).sum())
        spent, self._spent = self._spent, {}
        total = flops.batch_flops(self._model.config, self._model.adapters, batch)
        return Work(tokens, learned, total, {f"{run_directory.SECONDS}{on}": seconds for on, seconds in spent.items()})

    def facts(self, work: Work, seconds: float) -> dict[str, float]:
        """Return the metrics of a step of this duration, compilation excluded."""
        self._recent.append(seconds)
        within = (spent for on, spent in work.spent.items() if on != COMPILE)
        train_s = max(seconds - sum(within), 0.0)
        facts = {
            run_directory.TOKENS_PER_SECOND: work.tokens / seconds,
            run_directory.TRAINED_TOKENS_PER_SECOND: work.learned / seconds,
            run_directory.STEP_SECONDS: seconds,
            **work.spent,
            f"{run_directory.SECONDS}train": train_s,
            **({run_directory.TOKENS_PER_SECOND_OF_TRAINING: work.tokens / train_s} if train_s else {}),
            **{f"{run_directory.SECONDS}p{p}": float(np.percentile(self._recent, p)) for p in PERCENTILES},
            **memory(),
        }
        if self._peak is not None:
            facts[run_directory.MFU] = work.flops / (seconds * self._peak)
        return facts


def peak_flops(accelerator: Accelerator) -> float | None:
    """Return the peak bfloat16 FLOP/s of all chips of the job; None for CPUs, whose peak is not published."""
    slice_ = accelerators.resolve(accelerator.type, accelerator.topology, accelerator.slices)
    return None if slice_.chip is None else slice_.chip.peak_bf16_tflops * 1e12 * slice_.total_chips


def memory() -> dict[str, float]:
    """Return the process's memory, its first device's peak in GiB, and how busy its chips are, as far as is told."""
    facts = {}
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        facts[run_directory.HOST_MEMORY] = pages * os.sysconf("SC_PAGE_SIZE") / GIB
    except OSError:
        pass  # not Linux
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        facts[run_directory.HBM_IN_USE] = stats["peak_bytes_in_use"] / GIB
    busy = duty_cycle()
    if busy is not None:
        facts[run_directory.DUTY_CYCLE] = busy
    return facts
