"""From a job to its verdict, in stages, each only as far as needed.

    formula   always: milliseconds
    fast      the compiler without optimisation: seconds; refuses what cannot fit, accepts what fits with room
    full      the compile that training uses: where the fast one leaves a doubt

The compiler's word always wins over the formula's. Of a rollout, the fast compile is of two shallow models and seldom
leaves a doubt: most of what a rollout holds are its arguments.
"""

from __future__ import annotations

import importlib.metadata
import math
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from ptapi.spec import PostTrainJob
from pttrainer import division, placement
from pttrainer.models import ModelConfig
from pttrainer.preflight import advice, chips, formula, outside, sampling, shares
from pttrainer.preflight.collectives import Traffic
from pttrainer.preflight.estimate import estimate
from pttrainer.preflight.outside import Buffer
from pttrainer.preflight.passes import DECODE, PREFILL, ROLLOUT, SCORING, TRAIN_STEP, WEIGHTS, others
from pttrainer.preflight.sampling import cache_bytes, plan_of, sampler
from pttrainer.preflight.shares import Shares
from pttrainer.preflight.subject import TOLD, Subject, is_told, subject
from pttrainer.preflight.verdict import Program, Stage, Verdict

if TYPE_CHECKING:  # with it comes jax; imported when it is asked
    from pttrainer.preflight import compiler

Depth = Literal["auto", "formula", "fast", "full"]

ROOMY = 0.8
"""Share of a device's memory up to which the fast compile's word is enough: full optimisation takes more only where
there is more."""
HOPELESS = 1.15
"""Share above which it is, too: full optimisation saved up to about a tenth where memory was short."""
CLOSE = 0.03
"""A rollout's peak so near to all of a device's memory, either way, is compiled at full depth."""


def judge(
    job: PostTrainJob,
    depth: Depth = "auto",
    price: float | None = None,
    *,
    config: ModelConfig | None = None,
    limit_s: float | None = None,
) -> Verdict:
    """The verdict; raises ConfigError on a job that is wrong in itself.

    config: of the model, where it is known already. limit_s: for all compiles together; then the formula answers.
    """
    of = subject(job.spec, config)
    chips.usable_bytes(of.slice)
    computed = formula.memory(of)
    found = _Compiled([], None, [])
    why = None if depth == "formula" else chips.why_no_compiler(of.slice, of.config.family)
    if why is not None:
        found.notes.append(f"{why}; the formula answers instead")
    elif depth != "formula":
        found = _compiled(of, depth, None if limit_s is None else time.monotonic() + limit_s)
    programs = [computed.program, *found.programs]
    decisive = {one.name: one for one in programs}  # the last word on each
    buffers = computed.outside
    peaks = _peaks(of, decisive, buffers)
    during = max(peaks, key=lambda name: peaks[name])
    has = computed.available
    fits = all(one.fits for one in decisive.values()) and peaks[during] <= has
    return Verdict(
        job=job.metadata.name,
        model=job.spec.model.uri,
        parameters=of.config.parameters,
        trained_parameters=sum(one.size for one in of.form.trained_weights.values()),
        accelerator=of.slice.describe(),
        chips=of.slice.total_chips,
        devices=of.slice.total_devices,
        devices_per_chip=of.slice.jax_devices_per_chip,
        mesh=dict(zip(division.MESH_AXES, of.shape, strict=True)),
        fits=fits,
        stage=decisive[TRAIN_STEP].stage,
        peak=peaks[during],
        available=has,
        peak_during=during,
        programs=programs,
        outside=buffers,
        largest=_largest(computed.parts, buffers),
        arrays=_arrays(of),
        collectives=found.traffic,
        estimate=estimate(of, found.traffic, price, {one.name: one.collectives for one in found.programs}),
        assumptions=assumptions(of, programs, price),
        notes=found.notes,
        options=[] if fits else advice.options(of),
        smallest=[] if fits else advice.smallest(of),
        versions=versions(),
    )


class _Compiled(NamedTuple):
    """Programs as the compiler saw them, what the step sends, and what the compiler did not answer."""

    programs: list[Program]
    traffic: list[Traffic] | None
    notes: list[str]


def _compiled(of: Subject, depth: Depth, until: float | None) -> _Compiled:
    """The train step as far as needed; if it fits, the job's other programs at the first level."""
    found = _Compiled([], None, [])
    levels: tuple[compiler.Level, ...] = ("fast", "full") if depth in ("auto", "full") else ("fast",)
    for level in levels:
        answer = _ask(of, TRAIN_STEP, level, until, found)
        if answer is None:
            return found
        one = answer[TRAIN_STEP]
        found = found._replace(traffic=list(one.traffic) if one.fits else None)
        share = one.peak / chips.usable_bytes(of.slice)
        if depth == "auto" and (share < ROOMY or share > HOPELESS):
            break
    if found.programs[-1].fits:
        for name in others(of):
            answer = _ask(of, name, levels[0], until, found)
            if name == ROLLOUT and answer is not None and len(levels) > 1 and _is_close(of, found.programs):
                _ask(of, name, levels[1], until, found)
    return found


def _is_close(of: Subject, programs: list[Program]) -> bool:
    peaks = _rollout_peaks(of, {one.name: one for one in programs}, outside.outside(of))
    return abs(max(peaks.values()) / chips.usable_bytes(of.slice) - 1) < CLOSE


def _ask(
    of: Subject, name: str, level: compiler.Level, until: float | None, found: _Compiled
) -> compiler.Answer | None:
    """One compile, noted in `found`; None where there is no answer."""
    left = None if until is None else max(0.0, until - time.monotonic())
    from pttrainer.preflight import compiler

    answer = compiler.in_a_child(of, name, level, left)
    if isinstance(answer, str):
        instead = "; the formula answers instead" if name in (ROLLOUT, TRAIN_STEP) and not found.programs else ""
        found.notes.append(f"{name}, {level} compile: {answer}{instead}")
        return None
    found.programs.extend(_program(program, level, one) for program, one in answer.items())
    return answer


def _peaks(of: Subject, decisive: dict[str, Program], buffers: list[Buffer]) -> dict[str, int]:
    """Bytes per device at the highest moment of each phase, everything counted that is there then."""
    peaks = {TRAIN_STEP: decisive[TRAIN_STEP].peak + outside.resident(buffers, "train")}
    computed = outside.rollout_peak(of, buffers)
    if computed:
        peaks |= _rollout_peaks(of, decisive, buffers) or {ROLLOUT: computed}
    if SCORING in decisive:
        # It takes weights alone (a critic's, too); the rest of the training state stays where it is.
        held = of.held
        used = [*held.params, *held.critic, *held.frozen]
        unused = shares.total([*held.state, *held.frozen]) - shares.total(used)
        peaks[SCORING] = decisive[SCORING].peak + unused + outside.resident(buffers, "scoring")
    return peaks


def _rollout_peaks(of: Subject, decisive: dict[str, Program], buffers: list[Buffer]) -> dict[str, int]:
    """Of the programs that were compiled, with what stands beside them: training's state, a reference, and what the
    rollout itself keeps."""
    drafted = sum(buffer.bytes for buffer in buffers if buffer.name == outside.DRAFT)  # an argument of two of them
    beside = _beside(of, buffers, drafted)
    peaks = {name: decisive[name].peak + beside for name in (WEIGHTS, PREFILL, DECODE) if name in decisive}
    if WEIGHTS in peaks:
        peaks[WEIGHTS] += drafted - decisive[WEIGHTS].arguments  # are the state's
    if DECODE in peaks and decisive[DECODE].fits:
        # While the cache is made larger, the old half of it is there too.
        there, held = sampler(of), decisive[DECODE].arguments
        plan = plan_of(there)
        growing = cache_bytes(there, plan.rows, plan.slots // 2)
        peaks[DECODE] = max(peaks[DECODE], held + growing + beside)
        if plan.is_refilled:  # rows wait while the next prompts are computed
            computed = sampling.weights_bytes(of.form, there.shape)
            weights = decisive[WEIGHTS].output if WEIGHTS in decisive else computed
            peaks[PREFILL] += held - weights - decisive[PREFILL].output - drafted
    return peaks


def _beside(of: Subject, buffers: list[Buffer], drafted: int) -> int:
    """What stands beside a rollout's programs: training's state and a reference; on other devices, the versions of the
    weights that are not sampled from, and what of the next is under way."""
    if of.sampler is None:
        return outside.state(of) + outside.resident(buffers, "scoring") - drafted
    sizes = {buffer.name: buffer.bytes for buffer in buffers}
    copies = placement.copies(of.spec)
    return sizes["rollout weights"] * (copies - 1) // copies + sizes[outside.UNDER_WAY]


def _program(name: str, stage: Stage, one: compiler.Compiled) -> Program:
    sizes = (one.peak, one.arguments, one.temporaries, one.output)
    return Program(name, stage, one.fits, *sizes, round(one.seconds, 1), list(one.traffic))


def _largest(parts: list[Buffer], buffers: list[Buffer], count: int = 6) -> list[Buffer]:
    return sorted([*parts, *buffers], key=lambda buffer: -buffer.bytes)[:count]


def _arrays(of: Subject, count: int = 8) -> list[Buffer]:
    """The largest arrays of training's state by name: weights, moments, what is frozen, a teacher's weights."""
    held = of.held
    parts: dict[str, Shares] = {
        "": held.params,
        "optimizer": held.optimizer,
        "frozen": held.frozen,
        "teacher": held.teacher,
    }
    named = [
        Buffer(".".join([*([part] if part else []), *path]), share.bytes, "always")
        for part, found in parts.items()
        for path, share in found
    ]
    return sorted(named, key=lambda buffer: -buffer.bytes)[:count]


def assumptions(of: Subject, programs: list[Program], price: float | None) -> list[str]:
    """What the numbers rest on."""
    training = of.spec.training
    names = {one.name for one in programs if one.stage != "formula"}
    said = [
        f"every row has {training.sequence_length} tokens, one example each, and all of them are trained on",
        "time is a roofline: the slowest of arithmetic, memory and network at their published rates",
    ]
    if of.sampler is not None:
        count, tensor = math.prod(of.sampler), of.sampler[division.MESH_AXES.index("tensor")]
        said.append(f"{of.devices} devices train and {count} sample, with the model split over {tensor} of them")
    if SCORING in others(of) and SCORING not in names:
        said.append(f"the {SCORING} was not compiled and is not counted")
    if not names:
        said.append("memory is the formula's (docs/reference/preflight.md); collectives are not counted")
    if of.spec.algorithm.kind in ("distill", "ppo") and not names:
        said.append(f"the formula was never compared with the compiler on {of.spec.algorithm.kind}")
    if is_told(of.spec):
        said.append(f"the data hold {TOLD} of the teacher's tokens for each of the student's")
    if ROLLOUT in others(of):
        by = "compiled" if DECODE in names else "computed, not compiled"
        plan = plan_of(sampler(of))
        said.append(
            f"prompts of {plan.prompt_tokens} tokens, completions of {plan.new_tokens}, all of them; "
            f"a rollout's memory is {by}; the time of rewards is not counted"
        )
    if of.spec.evaluation.every_steps or of.spec.data.eval is not None:
        said.append("evaluation is not counted")
    if training.steps is None:
        said.append("training.steps is unset and data are not read: no length, no chip-hours")
    if price is None:
        said.append("no price given (--price): no cost")
    own = None if of.spec.algorithm.distill is None else of.spec.algorithm.distill.self_teacher
    if own is not None and own.privileged_context is not None:
        said.append("a self-teacher's rows are taken for as long as the student's")
    said.append("checkpoints are copied to the hosts' memory, not kept on chips")
    return said


def versions() -> dict[str, str]:
    """Of what the verdict depends on."""
    found = {}
    for name in ("jax", "libtpu", "posttrain"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
