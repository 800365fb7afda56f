"""Check a job's memory in stages, each only as far as needed.

formula   always: milliseconds
    fast      the compiler without optimisation: seconds; rejects what cannot fit, accepts what fits with room
    full      the compile that training uses: if the fast one leaves a doubt

The compiler always overrides the formula, and the full compile the fast one. The fast compile of a rollout uses two
shallow models and seldom leaves a doubt: most of a rollout's memory is its arguments. Memory besides a program
(`resident`) counts at every stage: the compiler does not see it.
"""

import time
from typing import Literal, NamedTuple

from pttrainer.preflight.compiler import compiler_process, result
from pttrainer.preflight.memory import formula, resident
from pttrainer.preflight.memory.resident import DRAFT, GROWING, KEPT, ROLLOUT_WEIGHTS, UNDER_WAY, Buffer
from pttrainer.preflight.shapes import device_bytes, tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.shapes.local_devices import LocalDevices
from pttrainer.preflight.shapes.passes import CUT, DECODE, PREFILL, PUT, ROLLOUT, SCORING, TRAIN_STEP, WEIGHTS, others
from pttrainer.preflight.shapes.rollout_shapes import plan_of, rows_bytes, sampler
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.verdict import Level, Program, Stage
from pttrainer.rollout.disaggregated import placement
from pttrainer.rollout.native.sizes import sampling_time

Depth = Literal["auto", "formula", "fast", "full"]
LEVELS: tuple[Level, ...] = ("fast", "full")

ROOMY = 0.8
"""Share of a device's memory up to which the fast compile of the step suffices: full optimisation uses more only if
there is more."""
HOPELESS = 1.15
"""Share above which it suffices, too: full optimisation saved up to about a tenth when memory was short."""
UNSURE = 0.9
"""Share from which on, up to `HOPELESS`, the formula alone is not decisive: its error is up to a tenth."""
CLOSE = 0.03
"""Another program with a peak this close to a device's memory, either way, gets the full compile: a scoring pass keeps
nothing for a backward pass, and most of a rollout's memory is its arguments."""


class MemoryCheck(NamedTuple):
    """The result of the check.

    programs: as formula and compiler saw them, the decisive answer on each last. phases: what is on a device at the
    highest moment of each phase, everything included. traffic: of the compiled step.
    """

    programs: list[Program]
    buffers: list[Buffer]
    parts: list[Buffer]
    phases: dict[str, list[Buffer]]
    available: int
    traffic: list[Traffic] | None
    notes: list[str]

    @property
    def decisive(self) -> dict[str, Program]:
        """Return the decisive answer on each program."""
        return {one.name: one for one in self.programs}

    @property
    def stage(self) -> Stage:
        """Return the stage of the decisive answer on the step."""
        return self.decisive[TRAIN_STEP].stage

    @property
    def during(self) -> str:
        """Return the phase with the highest peak."""
        return max(self.phases, key=lambda name: resident.total(self.phases[name]))

    @property
    def peak(self) -> int:
        """Return the highest peak of all phases."""
        return resident.total(self.phases[self.during])

    @property
    def is_computed(self) -> bool:
        """Return True if the highest peak is the formula's alone."""
        one = self.decisive.get(self.during)
        return one is None or one.stage == "formula"

    @property
    def fits(self) -> bool:
        """Return True if every program fits, and everything together."""
        return all(one.fits for one in self.decisive.values()) and self.peak <= self.available


def check_memory(of: JobShapes, depth: Depth = "auto", limit_s: float | None = None) -> MemoryCheck:
    """Check a job's memory. limit_s: for all compiles together; after that the formula answers."""
    computed = formula.memory(of)
    check = MemoryCheck([computed.program], computed.outside, computed.parts, {}, computed.available, None, [])
    why = None if depth == "formula" else tpu_topology.why_no_compiler(of.slice)
    if why is not None:
        check.notes.append(f"{why}; the formula answers instead")
    elif depth != "formula":
        check = _compiled(of, check, depth, None if limit_s is None else time.monotonic() + limit_s)
    check = check._replace(phases=_phases(of, check.decisive, check.buffers))
    if check.is_computed and UNSURE < check.peak / check.available <= HOPELESS:
        check.notes.append("within the formula's error of what a chip has: only the compiler can tell")
    return check


def _compiled(of: JobShapes, check: MemoryCheck, depth: Depth, until: float | None) -> MemoryCheck:
    """Compile the train step as far as needed; if it fits, the job's other programs."""
    is_here = isinstance(of.slice, LocalDevices)  # nothing is refused there, so nothing is refused sooner
    levels: tuple[Level, ...] = ("full",) if is_here or depth == "full" else LEVELS[: 1 + (depth == "auto")]
    beside = resident.total(resident.during(check.buffers, "train"))
    for level in levels:
        answer = _ask(of, TRAIN_STEP, level, until, check)
        if answer is None:
            return check
        one = answer[TRAIN_STEP]
        check = check._replace(traffic=list(one.traffic) if one.fits else None)
        share = (one.peak + beside) / check.available
        if depth == "auto" and (share < ROOMY or share > HOPELESS):
            break
    if check.decisive[TRAIN_STEP].fits:
        first: Level = "full" if is_here else "fast"
        for name in others(of):
            answer = _ask(of, name, first, until, check)
            if answer is not None and first != levels[-1] and _is_close(of, check, set(answer)):
                _ask(of, name, levels[-1], until, check)
    return check


def _is_close(of: JobShapes, check: MemoryCheck, names: set[str]) -> bool:
    phases = _phases(of, check.decisive, check.buffers)
    return any(abs(resident.total(phases[name]) / check.available - 1) < CLOSE for name in names)


def _ask(of: JobShapes, name: str, level: Level, until: float | None, check: MemoryCheck) -> result.Answer | None:
    """Run one compile and record it in `check`; return None if there is no answer."""
    left = None if until is None else max(0.0, until - time.monotonic())
    answer = compiler_process.compile_in_child(of, name, level, left)
    if isinstance(answer, str):
        known = {one.name for one in check.programs if one.stage != "formula"}
        is_computed = (name == ROLLOUT and DECODE not in known) or (name == TRAIN_STEP and TRAIN_STEP not in known)
        check.notes.append(f"{name}, {level} compile: {answer}{'; the formula answers instead' * is_computed}")
        return None
    check.programs.extend(_program(program, level, one) for program, one in answer.items())
    return answer


def _phases(of: JobShapes, decisive: dict[str, Program], buffers: list[Buffer]) -> dict[str, list[Buffer]]:
    """Return what is on a device in each phase: the program's peak, and the memory besides it."""
    always = resident.during(buffers, "always")
    phases = {TRAIN_STEP: [_peak(decisive[TRAIN_STEP]), *resident.during(buffers, "train")]}
    computed = resident.rollout_buffers(of, buffers)
    if computed:
        phases |= _rollout_phases(of, decisive, buffers) or {ROLLOUT: computed}
    if CUT in decisive:  # its arguments are the state's
        phases[CUT] = [_without(decisive[CUT], "arguments"), resident.training_state(of), *always]
    if PUT in decisive:
        stay = [buffer for buffer in buffers if buffer.name in (ROLLOUT_WEIGHTS, DRAFT)]
        phases[PUT] = [_without(decisive[PUT], "output"), *stay]
    if SCORING in decisive:
        # It takes weights alone (a critic's, too); the rest of the training state stays where it is.
        held = of.arguments
        used = [*held.params, *held.critic, *held.frozen]
        unused = device_bytes.total([*held.state, *held.frozen]) - device_bytes.total(used)
        state = Buffer("training state besides weights", unused, "always")
        phases[SCORING] = [_peak(decisive[SCORING]), state, *always]
    return phases


def _rollout_phases(of: JobShapes, decisive: dict[str, Program], buffers: list[Buffer]) -> dict[str, list[Buffer]]:
    """Return the compiled programs' peaks, each with training's state, a reference, and the rollout's own buffers."""
    draft = [buffer for buffer in buffers if buffer.name == DRAFT]  # an argument of two of the programs
    beside = _beside(of, buffers)
    phases = {name: [_peak(decisive[name]), *beside] for name in (WEIGHTS, PREFILL, DECODE) if name in decisive}
    if WEIGHTS in phases:  # its arguments are the state's
        phases[WEIGHTS] = [_without(decisive[WEIGHTS], "arguments"), *beside, *draft]
    if DECODE in phases and decisive[DECODE].fits:
        there, held = sampler(of), decisive[DECODE].arguments
        plan = plan_of(there)
        growing = Buffer(GROWING, rows_bytes(there, plan.rows, plan.slots // 2), "rollout")
        if held + growing.bytes > decisive[DECODE].peak:
            phases[DECODE] = [Buffer(f"arguments of {DECODE}", held, "rollout"), growing, *beside]
        if plan.is_refilled:  # rows wait while the next prompts are computed
            computed = sampling_time.weights_bytes(of.structure, there.shape)
            weights = decisive[WEIGHTS].output if WEIGHTS in decisive else computed
            waiting = held - weights - decisive[PREFILL].output - resident.total(draft)
            phases[PREFILL].append(Buffer("rows that wait for prompts", waiting, "rollout"))
    return phases


def _beside(of: JobShapes, buffers: list[Buffer]) -> list[Buffer]:
    """Return the memory besides a rollout's programs.

    Kept prompts; training's state and a reference; on other devices, versions of the weights that are not sampled
    from, and the part of an arriving version in transfer.
    """
    kept = [buffer for buffer in buffers if buffer.name == KEPT]
    if of.sampler is None:
        always = resident.during(buffers, "always")
        return [resident.training_state(of), *(buffer for buffer in always if buffer.name != DRAFT), *kept]
    copies = placement.copies(of.spec)
    if copies == 1:
        return kept
    weights = next(buffer.bytes for buffer in buffers if buffer.name == ROLLOUT_WEIGHTS)
    arriving = [buffer for buffer in buffers if buffer.name == UNDER_WAY]
    return [
        Buffer("other versions of the rollout weights", weights * (copies - 1) // copies, "rollout"),
        *arriving,
        *kept,
    ]


def _peak(program: Program) -> Buffer:
    return Buffer(program.name, program.peak, "always")


def _without(program: Program, part: Literal["arguments", "output"]) -> Buffer:
    """Return a program's peak without what other buffers hold already."""
    return Buffer(f"{program.name} besides its {part}", program.peak - getattr(program, part), "always")


def _program(name: str, stage: Stage, one: result.Compiled) -> Program:
    sizes = (one.peak, one.arguments, one.temporaries, one.output)
    return Program(name, stage, one.fits, *sizes, round(one.seconds, 1), list(one.traffic), one.step_seconds)
