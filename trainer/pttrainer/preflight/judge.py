"""From a job to its verdict, in stages, each only as far as needed.

    formula   always: milliseconds
    fast      the compiler without optimisation: seconds; refuses what cannot fit, accepts what fits with room
    full      the compile that training uses: where the fast one leaves a doubt

The compiler's word on the train step always wins over the formula's; a rollout's memory is computed only.
"""

from __future__ import annotations

import importlib.metadata
from typing import Literal

import jax

from ptapi.spec import PostTrainJob
from pttrainer import sharding
from pttrainer.preflight import advice, chips, compiler, formula, outside
from pttrainer.preflight.collectives import Traffic, collectives
from pttrainer.preflight.estimate import estimate
from pttrainer.preflight.outside import Buffer
from pttrainer.preflight.subject import Subject, subject
from pttrainer.preflight.verdict import Program, Stage, Verdict

Depth = Literal["auto", "formula", "fast", "full"]

ROOMY = 0.8
"""Share of a device's memory up to which the fast compile's word is enough: full optimisation takes more only where
there is more."""
HOPELESS = 1.15
"""Share above which it is, too: full optimisation saved up to about a tenth where memory was short."""
TRAIN_STEP = "train step"


def judge(job: PostTrainJob, depth: Depth = "auto", price: float | None = None) -> Verdict:
    """The verdict; raises ConfigError on a job that is wrong in itself."""
    of = subject(job.spec)
    chips.usable_bytes(of.slice)
    computed = formula.memory(of)
    notes: list[str] = []
    programs = [computed.program]
    traffic = None
    why = None if depth == "formula" else chips.why_no_compiler(of.slice, of.config.family)
    if why is not None:
        notes.append(f"{why}; the formula answers instead")
    elif depth != "formula":
        compiled, traffic = _compiled(of, depth)
        programs += compiled
        if not compiled:
            notes.append(
                "the TPU compiler ended abruptly (a bug of its own, or host memory); the formula answers instead"
            )
    buffers = computed.outside
    decisive = programs[-1]
    train = decisive.peak + outside.resident(buffers, "train")
    rollout = outside.rollout_peak(of, buffers)
    has = computed.available
    fits = decisive.fits and max(train, rollout) <= has
    return Verdict(
        job=job.metadata.name,
        model=job.spec.model.uri,
        parameters=of.config.parameters,
        trained_parameters=sum(x.size for x in jax.tree.leaves(of.model.trained(of.model.abstract()))),
        accelerator=of.slice.describe(),
        chips=of.slice.total_chips,
        devices=of.slice.total_devices,
        devices_per_chip=of.slice.jax_devices_per_chip,
        mesh=dict(zip(sharding.MESH_AXES, of.shape, strict=True)),
        fits=fits,
        stage=decisive.stage,
        peak=max(train, rollout),
        available=has,
        peak_during="rollout" if rollout > train else TRAIN_STEP,
        programs=programs,
        outside=buffers,
        largest=_largest(computed.parts, buffers),
        collectives=traffic,
        estimate=estimate(of, traffic, price),
        assumptions=assumptions(of, programs[-1].stage, price),
        notes=notes,
        options=[] if fits else advice.options(of),
        smallest=[] if fits else advice.smallest(of),
        versions=_versions(),
    )


def _compiled(of: Subject, depth: Depth) -> tuple[list[Program], list[Traffic] | None]:
    """Programs as the compiler saw them, the decisive one last, and what it sends."""
    found = []
    levels: tuple[compiler.Level, ...] = ("fast", "full") if depth in ("auto", "full") else ("fast",)
    available = chips.usable_bytes(of.slice)
    traffic: list[Traffic] | None = None
    for level in levels:
        one = compiler.in_a_child(of, level)
        if one is None:
            break
        traffic = collectives(one.text, of.slice.devices) if one.fits else None
        found.append(_program(level, one))
        share = one.peak / available
        if depth == "auto" and (share < ROOMY or share > HOPELESS):
            break
    return found, traffic


def _program(stage: Stage, one: compiler.Compiled) -> Program:
    return Program(
        TRAIN_STEP, stage, one.fits, one.peak, one.arguments, one.temporaries, one.output, round(one.seconds, 1)
    )


def _largest(parts: list[Buffer], buffers: list[Buffer], count: int = 6) -> list[Buffer]:
    return sorted([*parts, *buffers], key=lambda buffer: -buffer.bytes)[:count]


def assumptions(of: Subject, stage: Stage, price: float | None) -> list[str]:
    """What the numbers rest on."""
    training = of.spec.training
    said = [
        f"every row has {training.sequence_length} tokens, one example each, and all of them are trained on",
        "time is a roofline: the slowest of arithmetic, memory and network at their published rates",
    ]
    if stage == "formula":
        said.append("memory is the formula's (docs/reference/preflight.md); collectives are not counted")
    if of.spec.algorithm.kind == "grpo":
        prompt = max(training.sequence_length - of.spec.rollout.max_new_tokens, 1)
        said.append(
            f"prompts of {prompt} tokens; a rollout's memory is computed, not compiled; its time is not counted"
        )
    if of.spec.evaluation.every_steps or of.spec.data.eval is not None:
        said.append("evaluation is not counted")
    if training.steps is None:
        said.append("training.steps is unset and data are not read: no length, no chip-hours")
    if price is None:
        said.append("no price given (--price): no cost")
    said.append("checkpoints are copied to the hosts' memory, not kept on chips")
    return said


def _versions() -> dict[str, str]:
    found = {}
    for name in ("jax", "libtpu", "posttrain"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
