"""The TPU compiler asked about the job's own programs: do they fit, and with how much memory.

Two levels. `fast` (no optimisation) refuses what is hopeless and costs seconds; `full` is the compile that training
uses. A step that does not fit is refused by the compiler with the memory that it would need. Whether it compiles
decides, not the sum of its parts: the compiler spends free memory on speed, and recomputes when memory is short.

A rollout's programs hold every layer by itself, so their fast compile is of two shallow models, and what the whole one
takes follows from them.

The compiler runs in a child (`compile`), which alone imports jax: both start at once.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptapi.spec import PostTrainJobSpec
from pttrainer.models import ModelConfig
from pttrainer.preflight.compiler.result import Answer
from pttrainer.preflight.shapes import local_devices, tpu_topology
from pttrainer.preflight.shapes.job_shapes import Subject, subject
from pttrainer.preflight.verdict import Level

HOST_BYTES = 3 * 10**9
"""Memory of this machine that a compiler may hold: it takes 1 to 2.2 GB, the operator's pod has 3.2."""
LOOK_S = 0.25
"""How often that is looked at: a compiler that gets lost in a step takes a gigabyte in seconds."""


def in_a_child(of: Subject, name: str, level: Level, limit_s: float | None = None) -> Answer | str:
    """Programs compiled in a process of its own, because a compiler that meets a bug of its own ends its process, and
    one that takes too much time or memory is ended. A text: why there is no answer."""
    import multiprocessing  # not needed by the formula, which answers in a blink

    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    here_ = of.slice if isinstance(of.slice, local_devices.Here) else None
    looks_at = local_devices if here_ is not None else tpu_topology
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


def _answer(
    prepare: Callable[[], None],
    sender: Any,
    asked: tuple[PostTrainJobSpec, ModelConfig, local_devices.Here | None],
    name: str,
    level: Level,
) -> None:
    """The child: what the compiler said, or what it raised, into the pipe."""
    prepare()
    sys.modules["IPython"] = None  # type: ignore[assignment]  # flax would import it, where it is, to ask for a notebook
    gc.disable()  # nearly all that is made here stays to the end, and looking through it takes a second
    from pttrainer.preflight.compiler import compile

    try:
        of = subject(*asked)
        sender.send(tpu_topology.why_unknown(of.slice) or compile.compiled(of, name, level))
    except Exception as error:
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))
