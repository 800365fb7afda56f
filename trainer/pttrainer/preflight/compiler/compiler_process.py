"""Ask the TPU compiler about the job's own programs: do they fit, and with how much memory.

Two levels. `fast` (no optimisation) rejects what clearly does not fit and takes seconds; `full` is the compile that
training uses. The compiler refuses a step that does not fit, with the memory that it would need. The refusal decides,
not the sum of the parts: the compiler spends free memory on speed, and recomputes when memory is short.

A rollout's programs hold every layer separately, so their fast compile uses two shallow models, and the full model's
need is extrapolated.

The compiler runs in a child process (`compile`), which alone imports jax: both start at once.
"""

import gc
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptapi.spec import PostTrainJobSpec
from pttrainer.errors import ConfigError
from pttrainer.models import ModelConfig
from pttrainer.preflight.compiler.result import Answer
from pttrainer.preflight.shapes import local_devices, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.verdict import Level

HOST_BYTES = 3 * 10**9
"""Host memory that a compiler may use: it takes 1 to 2.2 GB, the operator's pod has 3.2."""
LOOK_S = 0.25
"""Polling interval of that: a compiler stuck in a step takes a gigabyte in seconds."""
STDERR = 2
ShapeInputs = tuple[PostTrainJobSpec, ModelConfig, local_devices.LocalDevices | None]
"""The job, its model, and the local devices that replace the job's."""


def compile_in_child(of: JobShapes, name: str, level: Level, limit_s: float | None = None) -> Answer | str:
    """Compile programs in a child process; return the answer, or why there is none.

    A compiler bug ends its process, and one that takes too much time or memory is killed.
    """
    here_ = of.slice if isinstance(of.slice, local_devices.LocalDevices) else None
    looks_at = local_devices if here_ is not None else tpu_topology
    called = "TPU compiler" if here_ is None else "compiler"
    with tempfile.NamedTemporaryFile(prefix="posttrain-compiler-") as log:
        child, receiver = _start(looks_at.prepare_environment, (of.spec, of.config, here_), name, level, log.name)
        try:
            # Another compiler than that for TPUs brings its devices' own libraries, and has what this machine has.
            why = _why_stopped(receiver, child.pid, limit_s, HOST_BYTES if here_ is None else None)
            if why is not None:
                return f"the {called} was stopped {why}"
            answer: Answer | Exception = receiver.recv()
        except EOFError:
            failed = re.search(r"Check failed: .*", Path(log.name).read_text(errors="replace"))
            return f"the {called} ended abruptly ({failed[0] if failed else 'a bug of its own, or host memory'})"
        finally:
            child.kill()
            child.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _start(prepare: Callable[[], None], inputs: ShapeInputs, name: str, level: Level, log: str) -> tuple[Any, Any]:
    """Start the compiler's process; return it, and the end of the pipe that receives its answer."""
    import multiprocessing  # not needed by the formula, which answers in a blink

    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_answer, args=(prepare, sender, inputs, name, level, log), daemon=True)
    child.start()
    sender.close()  # so that the child's end is the pipe's end
    return child, receiver


def _why_stopped(receiver: Any, pid: int | None, limit_s: float | None, most: int | None) -> str | None:
    """Wait until there is something to receive; return why the child was stopped."""
    until = None if limit_s is None else time.monotonic() + limit_s
    while not receiver.poll(LOOK_S if until is None else max(0.0, min(LOOK_S, until - time.monotonic()))):
        if until is not None and time.monotonic() >= until:
            return f"after {limit_s:.0f} s"
        if most is not None and _held_bytes(pid) > most:
            return f"when it held more than {most / 1e9:.1f} GB of this machine's memory"
    return None


def _held_bytes(pid: int | None) -> int:
    """Return a local process's own memory, without mapped files; 0 if unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"RssAnon:\s*(\d+) kB", status)
    return 0 if match is None else int(match[1]) * 1024


def _answer(prepare: Callable[[], None], sender: Any, inputs: ShapeInputs, name: str, level: Level, log: str) -> None:
    """Send the compiler's answer, or its exception, into the pipe; runs in the child.

    log: a file for what libraries print, such as libtpu about the TPU that is not here.
    """
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), STDERR)
    prepare()
    sys.modules["IPython"] = None  # type: ignore[assignment]  # flax would import it, where it is, to ask for a notebook
    gc.disable()  # nearly all that is made here stays to the end, and looking through it takes a second
    from pttrainer.preflight.compiler import compile

    try:
        of = shapes_of(*inputs)
        sender.send(tpu_topology.why_unknown(of.slice) or compile.compiled(of, name, level))
    except ConfigError as error:
        sender.send(error)
    except Exception as error:
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))
