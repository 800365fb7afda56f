"""The compiler process's work: compile a job's programs here and now. Imports jax.

Nothing is allocated or run, so all that matters of a fast compile is its memory and network use: it generates no
machine code for a TPU's collectives, which saves a fifth of the time.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax

from ptapi.accelerators import compiler_flags, resolve
from pttrainer.errors import ConfigError
from pttrainer.preflight.compiler.programs import LOWERED, shallow
from pttrainer.preflight.compiler.result import Answer, Compiled, deeper, out_of_memory
from pttrainer.preflight.shapes import local_devices, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, ROLLOUT, TRAIN_STEP
from pttrainer.preflight.timing import program_time
from pttrainer.preflight.timing.collectives import collectives
from pttrainer.preflight.verdict import Level
from pttrainer.runtime.distributed import sharding

NOTHING = Compiled(True, 0.0, 0)
FAST = {"xla_tpu_mock_collectives": "true"}
"""Flags of the fast compile; memory and collectives stay the same."""
SAMPLER: dict[str, compiler_flags.SamplerProgram] = {PREFILL: "prefill", DECODE: "decode"}


def train_step(of: JobShapes, level: Level) -> Compiled:
    """Compile the step that this job trains with. Nothing is allocated or run."""
    return compiled(of, TRAIN_STEP, level)[TRAIN_STEP]


def compiled(of: JobShapes, name: str, level: Level) -> Answer:
    """Compile the programs of a name (`programs.LOWERED`), up to the first one that is refused."""
    pair = shallow(of) if name == ROLLOUT and level == "fast" else None
    if pair is None:
        return _compiled(of, name, level)
    few, more = (_compiled(each, name, level) for each in pair)
    steps = (of.config.layers - pair[0].config.layers) / (pair[1].config.layers - pair[0].config.layers)
    has = tpu_topology.usable_bytes(of.slice)
    return {program: deeper(few[program], more[program], steps, has) for program in few if program in more}


def flags_of(of: JobShapes, program: str, *, without_slow: bool = False) -> dict[str, str]:
    """Return the flags of one of a job's programs, as the trainer has them. A sampler's may have some of its own."""
    flags = compiler_flags.of_job(of.spec, without_slow=without_slow)
    if program not in SAMPLER:
        return flags
    return flags | compiler_flags.of_sampling(SAMPLER[program], of.sampling_slice.generation, flags)


def _compiled(of: JobShapes, name: str, level: Level) -> Answer:
    mesh = sharding.make_mesh(of.shape, tpu_topology.devices(of.training_slice))
    devices = max(of.training_slice.devices, of.sampling_slice.devices)  # of one slice: there is one, or all are alike
    is_tpu = not isinstance(of.slice, local_devices.LocalDevices)
    is_named = resolve(of.spec.accelerator.type).platform == of.slice.platform
    is_fast = is_tpu and level == "fast"
    answer: Answer = {}
    with jax.set_mesh(mesh), _level(level):
        programs, made, lowered = LOWERED[name](of, mesh), None, None
        while True:
            started = time.monotonic()
            try:
                lowered = programs.send(made)
                flags = flags_of(of, lowered.name, without_slow=is_fast) if is_named else {}
                flags |= FAST if is_fast else {}
                made = lowered.program.compile(compiler_options=flags if is_tpu else compiler_flags.options(flags))
            except StopIteration:
                return answer
            except jax.errors.JaxRuntimeError as error:
                if flag := _refused_flag(of, str(error)):
                    raise ConfigError(
                        f"spec.accelerator.xlaFlags: {flag}: the compiler refuses it ({str(error).splitlines()[0]}); "
                        "accepted: flags and values that this version of libtpu knows"
                    ) from error
                needs = out_of_memory(str(error))
                if needs is None or lowered is None:
                    raise
                return answer | {lowered.name: Compiled(False, time.monotonic() - started, needs[0], has=needs[1])}
            one = _measured(made, time.monotonic() - started, devices, lowered.turns, is_tpu=is_tpu)
            if name == TRAIN_STEP and level == "full" and is_tpu:  # without optimisation it would be another program's
                one = replace(one, step_seconds=program_time.step_seconds(made.as_text(), of))
            before = answer.get(lowered.name, NOTHING)
            answer[lowered.name] = one if lowered.times is None else before.beside(one, lowered.times)


def _refused_flag(of: JobShapes, message: str) -> str | None:
    """Return the job's own flag that the compiler does not take, if its message names one."""
    if "INVALID_ARGUMENT" not in message:
        return None
    named = re.findall(r"\bxla_[a-z0-9_]+", message)
    return next((flag for flag in of.spec.accelerator.xla_flags if flag[2:].partition("=")[0] in named), None)


def chip_peak(memory: Any) -> int:
    """Return the most bytes that a program needs on a TPU at once, of its `memory_analysis`.

    The compiler's peak is of arguments and the larger of temporaries on the chip and in its host's memory. Where some
    are in the host's, all temporaries as one bound it.
    """
    peak = int(memory.peak_memory_in_bytes)
    return min(peak, _together(memory)) if memory.host_temp_size_in_bytes else peak


def _together(memory: Any) -> int:
    """Return arguments, all temporaries and the results that are no arguments."""
    held = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    return int(held) - int(memory.alias_size_in_bytes)


def _measured(compiled: Any, seconds: float, devices_per_slice: int, turns: int | None, *, is_tpu: bool) -> Compiled:
    memory = compiled.memory_analysis()
    arguments, temporaries, output = (
        int(size) for size in (memory.argument_size_in_bytes, memory.temp_size_in_bytes, memory.output_size_in_bytes)
    )
    # A TPU's compiler knows when each buffer is there. Other backends take all temporaries as one, for the whole run.
    return Compiled(
        True,
        seconds,
        peak=chip_peak(memory) if is_tpu else _together(memory),
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
