"""The trainer as a child of its supervisor: its environment in a generation, and its end with the supervisor's."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ptapi.run_directory import TERMINATION_LOG_ENV, Generation, Termination
from pttrainer.runtime.distributed import processes

_PR_SET_PDEATHSIG = 1
MEGASCALE = "MEGASCALE_"
"""Prefix of libtpu's variables for several slices."""


class TrainerProcess(Protocol):
    """A trainer that was started; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Return the exit code, a signal's number below zero, or None while it runs."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal; nothing happens to one that has ended."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


def environment(generation: Generation, rank: int, own_slice: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the trainer's variables: those of this process, with its place in the generation."""
    of_processes = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    kept = {name: text for name, text in base.items() if name not in of_processes and not name.startswith(MEGASCALE)}
    kept[processes.GENERATION] = str(generation.number)
    kept[processes.SUPERVISOR] = str(os.getpid())
    if len(generation.members) > 1:
        kept["JAX_COORDINATOR_ADDRESS"] = generation.coordinator
        kept["JAX_NUM_PROCESSES"] = str(len(generation.members))
        kept["JAX_PROCESS_ID"] = str(rank)
    if len(generation.slices) > 1 and f"{MEGASCALE}NUM_SLICES" in base:
        others = {name: text for name, text in base.items() if name.startswith(MEGASCALE)}
        kept |= {
            **others,
            f"{MEGASCALE}NUM_SLICES": str(len(generation.slices)),
            f"{MEGASCALE}SLICE_ID": str(generation.slices.index(own_slice)),
            f"{MEGASCALE}COORDINATOR_ADDRESS": generation.coordinator.rpartition(":")[0],
        }
    return kept


def start(job: Path, env: Mapping[str, str]) -> TrainerProcess:
    """Start the trainer with these variables."""
    return subprocess.Popen(command(job), env=dict(env))


def command(job: Path) -> Sequence[str]:
    """Return the trainer's command line."""
    return (sys.executable, "-m", "pttrainer", "run", str(job))


def end_with_supervisor() -> None:
    """Make the kernel kill this process when its supervisor ends: two trainers of one host never run at once."""
    parent = processes.supervisor()
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


def clear_message() -> None:
    """Remove the termination message of an earlier generation: the pod may end in another way."""
    path = os.environ.get(TERMINATION_LOG_ENV)
    if path and Path(path).exists():
        Path(path).write_text("")


def message() -> str:
    """Return what the trainer that ended said of it, if it did."""
    path = os.environ.get(TERMINATION_LOG_ENV)
    try:
        return Termination.model_validate_json(Path(path).read_text()).message if path else ""
    except (OSError, ValueError):
        return ""
