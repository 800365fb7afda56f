"""The TPU compiler on the job's own programs: do they fit, and with how much memory.

Two levels. `fast` (no optimisation) refuses what is hopeless and costs seconds; `full` is the compile that training
uses. A step that does not fit is refused by the compiler with the memory that it would need. Whether it compiles
decides, not the sum of its parts: the compiler spends free memory on speed, and recomputes when memory is short.

A rollout's programs hold every layer by itself, so their fast compile is of two shallow models, and what the whole one
takes follows from them.
"""

from __future__ import annotations

import multiprocessing
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from ptapi.spec import PostTrainJobSpec
from pttrainer import compiler_flags, sharding
from pttrainer.models import ModelConfig
from pttrainer.preflight import chips, here
from pttrainer.preflight.collectives import Traffic, collectives, grown
from pttrainer.preflight.passes import ROLLOUT, TRAIN_STEP
from pttrainer.preflight.programs import LOWERED, shallow
from pttrainer.preflight.subject import Subject, subject
from pttrainer.preflight.verdict import Level

HOST_BYTES = 20 * 2**30
"""Address space of a compiler, of which it uses 1 to 3 GB."""

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
NOTHING = Compiled(True, 0.0, 0)


def in_a_child(of: Subject, name: str, level: Level, limit_s: float | None = None) -> Answer | str:
    """Programs compiled in a process of its own, because a compiler that meets a bug of its own, or takes too much
    host memory, ends its process. A text: why there is no answer."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    here_ = of.slice if isinstance(of.slice, here.Here) else None
    called, prepare = ("TPU compiler", _limit) if here_ is None else ("compiler", here.prepare_environment)
    asked = (of.spec, of.config, here_)
    child = spawn.Process(target=_answer, args=(prepare, sender, asked, name, level), daemon=True)
    child.start()
    sender.close()  # so that the child's end is the pipe's end
    try:
        if not receiver.poll(limit_s):
            return f"the {called} was stopped after {limit_s:.0f} s"
        found: Answer | Exception = receiver.recv()
    except EOFError:
        return f"the {called} ended abruptly (a bug of its own, or host memory)"
    finally:
        child.kill()
        child.join()
    if isinstance(found, Exception):
        raise found
    return found


def train_step(of: Subject, level: Level) -> Compiled:
    """Compiles the step that this job trains with. Nothing is allocated or run."""
    return compiled(of, TRAIN_STEP, level)[TRAIN_STEP]


def compiled(of: Subject, name: str, level: Level) -> Answer:
    """Compiles what a name stands for (`programs.LOWERED`), up to the first program that is refused."""
    pair = shallow(of) if name == ROLLOUT and level == "fast" else None
    if pair is None:
        return _compiled(of, name, level)
    few, more = (_compiled(each, name, level) for each in pair)
    steps = (of.config.layers - pair[0].config.layers) / (pair[1].config.layers - pair[0].config.layers)
    has = chips.usable_bytes(of.slice)
    return {program: deeper(few[program], more[program], steps, has) for program in few if program in more}


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


def _compiled(of: Subject, name: str, level: Level) -> Answer:
    mesh = sharding.make_mesh(of.shape, chips.devices(of.training_slice))
    devices = max(of.training_slice.devices, of.sampling_slice.devices)  # of one slice: there is one, or all are alike
    is_tpu = not isinstance(of.slice, here.Here)
    flags = compiler_flags.NEEDED.get(of.slice.generation)
    found: Answer = {}
    with jax.set_mesh(mesh), _level(level):
        programs, made, asked = LOWERED[name](of, mesh), None, None
        while True:
            started = time.monotonic()
            try:
                asked = programs.send(made)
                made = asked.program.compile(compiler_options=flags)
            except StopIteration:
                return found
            except jax.errors.JaxRuntimeError as error:
                needs = out_of_memory(str(error))
                if needs is None or asked is None:
                    raise
                return found | {asked.name: Compiled(False, time.monotonic() - started, needs[0], has=needs[1])}
            one = _measured(made, time.monotonic() - started, devices, asked.turns, is_tpu=is_tpu)
            before = found.get(asked.name, NOTHING)
            found[asked.name] = one if asked.times is None else before.beside(one, asked.times)


def _answer(
    prepare: Callable[[], None],
    sender: Any,
    asked: tuple[PostTrainJobSpec, ModelConfig, here.Here | None],
    name: str,
    level: Level,
) -> None:
    """The child: what the compiler said, or what it raised, into the pipe."""
    prepare()
    try:
        sender.send(compiled(subject(*asked), name, level))
    except Exception as error:
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _limit() -> None:
    """Of address space, most of which a compiler only reserves."""
    chips.prepare_environment()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = HOST_BYTES if most == resource.RLIM_INFINITY else min(HOST_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def out_of_memory(message: str) -> tuple[int, int] | None:
    """(needs, has) in bytes, from the compiler's refusal; None where the message is about something else."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    needs, has = _NEEDS.search(message), _HAS.search(message)
    return None if needs is None or has is None else (_bytes(needs), _bytes(has))


def _measured(compiled: Any, seconds: float, devices_per_slice: int, turns: int | None, *, is_tpu: bool) -> Compiled:
    memory = compiled.memory_analysis()
    arguments, temporaries, output = (
        int(size) for size in (memory.argument_size_in_bytes, memory.temp_size_in_bytes, memory.output_size_in_bytes)
    )
    # A TPU's compiler knows when each buffer is there. Other backends take all temporaries as one, for the whole run.
    together = arguments + temporaries + output - int(memory.alias_size_in_bytes)
    return Compiled(
        True,
        seconds,
        peak=int(memory.peak_memory_in_bytes) if is_tpu else together,
        arguments=arguments,
        temporaries=temporaries,
        output=output,
        traffic=tuple(collectives(compiled.as_text(), devices_per_slice, turns)),
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
