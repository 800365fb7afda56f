"""From a job to its verdict: what it takes (`weighing`), how long a step takes at best, what to change, and what all of
it rests on. Left out: how far each stage is trusted; `weighing` says that.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Mapping

from ptapi.spec import PostTrainJob
from pttrainer.models import ModelConfig
from pttrainer.preflight.advice import changes
from pttrainer.preflight.memory import formula
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.memory.staged_check import Depth, Weighed, weigh
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.device_bytes import Shares
from pttrainer.preflight.shapes.job_shapes import TOLD, Subject, is_told, subject
from pttrainer.preflight.shapes.local_devices import Here
from pttrainer.preflight.shapes.passes import DECODE, ROLLOUT, SCORING, others
from pttrainer.preflight.shapes.rollout_shapes import plan_of, sampler
from pttrainer.preflight.timing.step_time import estimate
from pttrainer.preflight.verdict import Program, Verdict
from pttrainer.runtime.distributed import logical_axes


def judge(
    job: PostTrainJob,
    depth: Depth = "auto",
    price: float | None = None,
    *,
    prices: Mapping[str, float] | None = None,
    config: ModelConfig | None = None,
    limit_s: float | None = None,
    here: Here | None = None,
) -> Verdict:
    """The verdict; raises ConfigError on a job that is wrong in itself.

    price: of a chip-hour, for the run; prices: by generation, for which slice is cheapest. config: of the model, where
    it is known already. limit_s: for all compiles together; then the formula answers. here: devices in place of those
    that the job names.
    """
    of = subject(job.spec, config, here)
    tpu_topology.usable_bytes(of.slice)
    found = weigh(of, depth, limit_s)
    factor = 1.0 if found.fits else _factor(of, found)
    compiled = {one.name: one.collectives for one in found.programs if one.stage != "formula"}
    return Verdict(
        job=job.metadata.name,
        model=job.spec.model.uri,
        parameters=of.config.parameters,
        trained_parameters=sum(one.size for one in of.form.trained_weights.values()),
        accelerator=of.slice.describe(),
        chips=of.slice.total_chips,
        devices=of.slice.total_devices,
        devices_per_chip=of.slice.jax_devices_per_chip,
        mesh=dict(zip(logical_axes.MESH_AXES, of.shape, strict=True)),
        fits=found.fits,
        stage=found.stage,
        peak=found.peak,
        available=found.available,
        peak_during=found.during,
        programs=found.programs,
        outside=found.buffers,
        largest=_largest(found.parts, found.buffers),
        arrays=_arrays(of),
        collectives=found.traffic,
        estimate=None if here is not None else estimate(of, found.traffic, price, compiled),
        assumptions=assumptions(of, found.programs, price),
        notes=found.notes,
        factor=factor,
        options=[] if found.fits else changes.options(of, factor),
        smallest=[] if found.fits else changes.smallest(of, factor, prices),
        versions=versions(),
    )


def _factor(of: Subject, found: Weighed) -> float:
    """By how much more the compiler said that the job needs than the formula had; 1 where it is not more. A job that is
    refused needs more than there is, whatever the formula thinks."""
    if found.is_computed:
        return 1.0
    return max(1.0, max(found.peak, found.available + 1) / formula.memory(of).peak)


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
    said = [f"every row has {training.sequence_length} tokens, one example each, and all of them are trained on"]
    if isinstance(of.slice, Here):
        said.append("these devices stand in for those that the job names; how long a step takes is not estimated")
    else:
        said.append("time is a roofline: the slowest of arithmetic, memory and network at their published rates")
    if of.sampler is not None:
        count, tensor = math.prod(of.sampler), of.sampler[logical_axes.MESH_AXES.index("tensor")]
        said.append(f"{of.devices} devices train and {count} sample, with the model split over {tensor} of them")
    if SCORING in others(of) and SCORING not in names:
        said.append(f"the {SCORING} was not compiled and is not counted")
    if not names:
        said.append("memory is the formula's (docs/reference/preflight.md); collectives are not counted")
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
