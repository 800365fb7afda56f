"""The TPU compiler asked about the job's own programs: do they fit, and with how much memory.

Two levels. `fast` (no optimisation) refuses what is hopeless and costs seconds; `full` is the compile that training
uses. A step that does not fit is refused by the compiler with the memory that it would need. Whether it compiles
decides, not the sum of its parts: the compiler spends free memory on speed, and recomputes when memory is short.

A rollout's programs hold every layer by itself, so their fast compile is of two shallow models, and what the whole one
takes follows from them.

The compiler runs in a child (`compiling`), which alone imports jax: both start at once.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptapi.spec import PostTrainJobSpec
from pttrainer.models import ModelConfig
from pttrainer.preflight import chips, here
from pttrainer.preflight.collectives import Traffic, grown
from pttrainer.preflight.subject import Subject, subject
from pttrainer.preflight.verdict import Level

HOST_BYTES = 3 * 10**9
"""Memory of this machine that a compiler may hold: it takes 1 to 2.2 GB, the operator's pod has 3.2."""
LOOK_S = 0.25
"""How often that is looked at: a compiler that gets lost in a step takes a gigabyte in seconds."""

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
    traffic: tuple[Traffic, ...] = ()

    def beside(self, other: Compiled, times: int) -> Compiled:
        """With a program that runs after it so many times, and whose results stay."""
        arguments, output = self.arguments + other.arguments, self.output + times * other.output
        temporaries = max(self.temporaries, other.temporaries)
        return Compiled(
            self.fits and other.fits,
            self.seconds + other.seconds,
            arguments + output + temporaries,
            arguments,
            temporaries,
            output,
            self.has or other.has,
            (*self.traffic, *(one.times(times) for one in other.traffic)),
        )


Answer = dict[str, Compiled]
"""By name of program."""


def in_a_child(of: Subject, name: str, level: Level, limit_s: float | None = None) -> Answer | str:
    """Programs compiled in a process of its own, because a compiler that meets a bug of its own ends its process, and
    one that takes too much time or memory is ended. A text: why there is no answer."""
    import multiprocessing  # not needed by the formula, which answers in a blink

    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    here_ = of.slice if isinstance(of.slice, here.Here) else None
    looks_at = here if here_ is not None else chips
    called = "TPU compiler" if here_ is None else "compiler"
    asked = (of.spec, of.config, here_)
    child = spawn.Process(target=_answer, args=(looks_at.prepare_environment, sender, asked, name, level), daemon=True)
    child.start()
    sender.close()  # so that the child's end is the pipe's end
    try:
        # Another compiler than that for TPUs brings its devices' own libraries, and has what this machine has.
        why = _why_stopped(receiver, child.pid, limit_s, HOST_BYTES if here_ is None else None)
        if why is not None:
            return f"the {called} was stopped {why}"
        found: Answer | Exception = receiver.recv()
    except EOFError:
        return f"the {called} ended abruptly (a bug of its own, or host memory)"
    finally:
        child.kill()
        child.join()
    if isinstance(found, Exception):
        raise found
    return found


def _why_stopped(receiver: Any, pid: int | None, limit_s: float | None, most: int | None) -> str | None:
    """Waits until there is something to receive; why that came to no end."""
    until = None if limit_s is None else time.monotonic() + limit_s
    while not receiver.poll(LOOK_S if until is None else max(0.0, min(LOOK_S, until - time.monotonic()))):
        if until is not None and time.monotonic() >= until:
            return f"after {limit_s:.0f} s"
        if most is not None and _held_bytes(pid) > most:
            return f"when it held more than {most / 1e9:.1f} GB of this machine's memory"
    return None


def _held_bytes(pid: int | None) -> int:
    """Memory that a process of this machine alone holds, files that it reads not counted; 0 where nobody says."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s*(\d+) kB", status)
    return 0 if found is None else int(found[1]) * 1024


def deeper(few: Compiled, more: Compiled, steps: float, has: int) -> Compiled:
    """What a model takes with `steps` times as many layers more as `more` has more than `few`. A refused one says what
    it needs, too."""

    def of(name: str) -> int:
        return int((1 - steps) * getattr(few, name) + steps * getattr(more, name))

    peak = of("peak")
    return Compiled(
        few.fits and more.fits and peak <= has,
        few.seconds + more.seconds,
        peak,
        of("arguments"),
        of("temporaries"),
        of("output"),
        has,
        grown(few.traffic, more.traffic, steps),
    )


def _answer(
    prepare: Callable[[], None],
    sender: Any,
    asked: tuple[PostTrainJobSpec, ModelConfig, here.Here | None],
    name: str,
    level: Level,
) -> None:
    """The child: what the compiler said, or what it raised, into the pipe."""
    prepare()
    sys.modules["IPython"] = None  # type: ignore[assignment]  # flax would import it, where it is, to ask for a notebook
    gc.disable()  # nearly all that is made here stays to the end, and looking through it takes a second
    from pttrainer.preflight import compiling

    try:
        of = subject(*asked)
        sender.send(chips.why_unknown(of.slice) or compiling.compiled(of, name, level))
    except Exception as error:
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))


def out_of_memory(message: str) -> tuple[int, int] | None:
    """(needs, has) in bytes, from the compiler's refusal; None where the message is about something else."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    needs, has = _NEEDS.search(message), _HAS.search(message)
    return None if needs is None or has is None else (_bytes(needs), _bytes(has))


def _bytes(match: re.Match[str]) -> int:
    return int(float(match[1]) * _UNITS[match[2]])
