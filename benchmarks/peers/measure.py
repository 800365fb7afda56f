"""Measures a training process from outside, whoever wrote it: it only has to print a line `step N…` after each step
(`step N of M tokens` where steps differ in how much they do).

Start is from the process's creation to its first line; a step's seconds and CPU-seconds (user and system, all threads)
are those between two lines, read from /proc; memory is the process's peak of resident memory.
"""

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 2
"""Steps that are not counted: caches fill, memory is mapped."""
LEAST_STEPS = WARM_UP + 2


@dataclass(frozen=True)
class Measured:
    """One process. wall_s, cpu_s and tokens are medians of a step; tokens is 0 where the process does not say."""

    start_s: float
    wall_s: float
    cpu_s: float
    peak_gb: float
    tokens: float = 0.0


def measure(command: list[str], environment: dict[str, str] | None = None) -> Measured:
    """Runs a process to its end; raises RuntimeError, with its last words, where it fails."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    marks: list[tuple[float, float]] = []
    peak_kb, words, tokens = 0, [], []
    for line in process.stdout:
        words = [*words[-30:], line]
        if match := re.match(r"step \d+(?: of (\d+) tokens)?", line):
            tokens.append(float(match[1] or 0))
            marks.append((time.monotonic(), _cpu_seconds(process.pid)))
            peak_kb = _peak_kb(process.pid)
    if process.wait() != 0 or len(marks) < LEAST_STEPS:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(words)}")
    steps = list(zip(marks[WARM_UP - 1 :], marks[WARM_UP:], strict=False))
    return Measured(
        start_s=marks[0][0] - began,
        wall_s=statistics.median(after[0] - before[0] for before, after in steps),
        cpu_s=statistics.median(after[1] - before[1] for before, after in steps),
        peak_gb=peak_kb / 1e6,
        tokens=statistics.median(tokens[WARM_UP:]),
    )


def in_turns(sides: Mapping[str, Callable[[Path], Measured]], turns: int) -> dict[str, list[Measured]]:
    """Runs every side so often, one after the other, so that what else the machine does touches all of them. Each is
    given a directory of its own for what it compiles, kept from turn to turn."""
    measured: dict[str, list[Measured]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as caches:
        for _ in range(turns):
            for name, run in sides.items():
                measured[name].append(run(Path(caches) / name))
    return measured


def median(runs: Sequence[Measured], field: str) -> float:
    """Of one figure over runs."""
    return statistics.median(getattr(run, field) for run in runs)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) * 1024 // 1000 if match else 0
