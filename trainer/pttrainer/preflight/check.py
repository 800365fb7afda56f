"""From a job to its verdict: memory, minimal step time, suggested changes, and assumptions.

Left out: how far each stage is trusted (`staged_check`).
"""

import importlib.metadata
import math
import time
from collections.abc import Mapping

from ptapi.accelerators import one_process
from ptapi.spec import PostTrainJob, PostTrainJobSpec
from pttrainer.models import ModelConfig
from pttrainer.models.shapes import parameters
from pttrainer.preflight.advice import best_split, changes
from pttrainer.preflight.memory import formula, host_memory, recomputation, service_memory
from pttrainer.preflight.memory.resident import Buffer
from pttrainer.preflight.memory.staged_check import Depth, MemoryCheck, check_memory
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.device_bytes import Shares
from pttrainer.preflight.shapes.job_shapes import (
    JobShapes,
    has_teacher_logprobs,
    self_teacher,
    shapes_of,
    teacher_tokens,
)
from pttrainer.preflight.shapes.local_devices import LocalDevices
from pttrainer.preflight.shapes.passes import DECODE, ROLLOUT, SCORING, TRAIN_STEP, others
from pttrainer.preflight.shapes.rollout_shapes import is_elsewhere, plan_of, sampler
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
    here: LocalDevices | None = None,
) -> Verdict:
    """Return the verdict; raise ConfigError if the job is invalid.

    price: of a chip-hour, for the run; prices: by generation, to rank slices. config: of the model, if known
    already. limit_s: for all compiles together; after that the formula answers. here: local devices that replace
    the job's.
    """
    served = service_memory.check(job.spec)
    of, memory = _checked(shapes_of(job.spec, config, here), depth, limit_s)
    factor = 1.0 if memory.fits else _factor(of, memory)
    compiled = {one.name: one.collectives for one in memory.programs if one.stage != "formula"}
    estimated = None if here is not None else estimate(of, memory.traffic, price, compiled)
    return Verdict(
        job=job.metadata.name,
        model=job.spec.model.uri,
        parameters=parameters.count(of.config),
        trained_parameters=sum(one.size for one in of.structure.trained_weights.values()),
        accelerator=of.slice.describe(),
        chips=of.slice.total_chips,
        devices=of.slice.total_devices,
        devices_per_chip=of.slice.jax_devices_per_chip,
        mesh=dict(zip(logical_axes.MESH_AXES, of.shape, strict=True)),
        remat=of.structure.remat,
        fits=memory.fits,
        stage=memory.stage,
        peak=memory.peak,
        available=memory.available,
        peak_during=memory.during,
        programs=memory.programs,
        phases=memory.phases,
        largest=_largest(memory.parts, memory.buffers),
        arrays=_arrays(of),
        collectives=memory.traffic,
        estimate=estimated,
        assumptions=[*assumptions(of, memory.programs, price), *served],
        notes=[*memory.notes, *_shared_rows(of), *(best_split.notes(of, job.spec) if estimated is not None else [])],
        factor=factor,
        options=[] if memory.fits else changes.options(of, factor),
        smallest=[] if memory.fits else changes.smallest(of, factor, prices),
        versions=versions(),
    )


def _checked(job: JobShapes, depth: Depth, limit_s: float | None) -> tuple[JobShapes, MemoryCheck]:
    """Return the job with the policy that `auto` is (`full`, if the compiler refuses that), and its memory."""
    tpu_topology.usable_bytes(job.slice)
    of, started = recomputation.settled(job), time.monotonic()
    host_memory.check(of)
    memory = check_memory(of, depth, limit_s)
    if memory.fits or memory.during != TRAIN_STEP or of is job or of.structure.remat == "full":
        return of, memory
    note = f"training.remat: auto: {of.structure.remat} does not fit, full was taken"
    of = recomputation.with_policy(job, "full")
    left = None if limit_s is None else max(0.0, limit_s - (time.monotonic() - started))
    memory = check_memory(of, depth, left)
    return of, memory._replace(notes=[note, *memory.notes])


def _shared_rows(of: JobShapes) -> list[str]:
    """Return a note if devices share rows of a length for which attention has no kernel."""
    devices, length = of.axis("sequence"), of.spec.training.sequence_length
    multiple = devices * logical_axes.TOKENS_EACH
    if devices == 1 or (of.slice.platform == "tpu" and length % multiple == 0):
        return []
    kernel = f"a multiple of {multiple} has one" if of.slice.platform == "tpu" else "only TPUs have one"
    return [f"attention has no kernel for rows of {length} tokens that {devices} devices share, and is slow; {kernel}"]


def _factor(of: JobShapes, memory: MemoryCheck) -> float:
    """Return the compiler's need over the formula's, at least 1.

    A refused job needs more than there is, whatever the formula says.
    """
    if memory.is_computed:
        return 1.0
    return max(1.0, max(memory.peak, memory.available + 1) / formula.memory(of).peak)


def _largest(parts: list[Buffer], buffers: list[Buffer], count: int = 6) -> list[Buffer]:
    return sorted([*parts, *buffers], key=lambda buffer: -buffer.bytes)[:count]


def _arrays(of: JobShapes, count: int = 8) -> list[Buffer]:
    """Return the largest arrays of training's state by name: weights, moments, frozen and teacher's weights."""
    arguments = of.arguments
    parts: dict[str, Shares] = {
        "": arguments.params,
        "optimizer": arguments.optimizer,
        "frozen": arguments.frozen,
        "teacher": arguments.teacher,
    }
    named = [
        Buffer(".".join([*([part] if part else []), *path]), share.bytes, "always")
        for part, shares in parts.items()
        for path, share in shares
    ]
    return sorted(named, key=lambda buffer: -buffer.bytes)[:count]


def assumptions(of: JobShapes, programs: list[Program], price: float | None) -> list[str]:
    """Return the assumptions behind the numbers."""
    training = of.spec.training
    names = {one.name for one in programs if one.stage != "formula"}
    lines = [f"every row has {training.sequence_length} tokens, one example each, and all of them are trained on"]
    if isinstance(of.slice, LocalDevices):
        lines.append("these devices stand in for those that the job names; how long a step takes is not estimated")
    else:
        lines.append("time is a roofline: the slowest of arithmetic, memory and network at their published rates")
    if why := one_process.reason(of.spec):
        lines.append(f"one process drives all chips, by Pathways (pathways.enabled: auto): {why}")
    if of.sampler is not None:
        count, tensor = of.sampler_count * math.prod(of.sampler), of.sampler[logical_axes.MESH_AXES.index("tensor")]
        lines.append(f"{of.devices} devices train and {count} sample, with the model split over {tensor} of them")
    if of.samplers is not None and of.spec.rollout.vllm is not None:
        what = "the adapters" if of.spec.training.lora else "all weights"
        lines.append(f"the samplers read {what} from files after every update; that time is not counted")
    elif of.samplers is not None:
        lines.append("all weights go to the samplers over the hosts' network; only those that changed are sent")
    if of.samplers is not None and is_elsewhere(of):
        lines.append(f"the memory and time of the samplers, {of.samplers.describe()}, are not checked")
    if of.service_chips:
        lines.append(f"{of.service_chips} more chips are the services', for which the run's chip-hours pay as well")
    if SCORING in others(of) and SCORING not in names:
        lines.append(f"the {SCORING} was not compiled and is not counted")
    if not names:
        lines.append("memory is the formula's (docs/reference/preflight.md); collectives are not counted")
    if of.spec.model.images:
        sizes = "of a typical size where they differ in size, or filling the row"
        lines.append(f"every row and every prompt has one image, {sizes}")
    if has_teacher_logprobs(of.spec):
        lines.append(_of_teacher(of.spec))
    if ROLLOUT in others(of):
        by = "compiled" if DECODE in names else "computed, not compiled"
        plan = plan_of(sampler(of))
        lines.append(
            f"prompts of {plan.prompt_tokens} tokens, completions of {plan.new_tokens}, all of them; "
            f"a rollout's memory is {by}; the time of rewards is not counted"
        )
    if of.spec.evaluation.every_steps or of.spec.data.eval is not None:
        lines.append("evaluation is not counted")
    if waiting := host_memory.note(of):
        lines.append(waiting)
    if training.steps is None:
        lines.append("training.steps is unset and data are not read: no length, no chip-hours")
    if price is None:
        lines.append("no price given (--price): no cost")
    own = self_teacher(of.spec)
    if own is not None and own.privileged_context is not None:
        lines.append("a self-teacher's rows are taken for as long as the student's")
    lines.append("checkpoints are copied to the hosts' memory, not kept on chips")
    return lines


def _of_teacher(spec: PostTrainJobSpec) -> str:
    """Return what is assumed of a teacher whose log-probs come with a batch."""
    held = f"{teacher_tokens(spec)} of the teacher's tokens for each of the student's"
    if spec.algorithm.distill is None or spec.algorithm.distill.teacher_service is None:
        return f"the data hold {held}"
    return f"a service finds {held}; its chips and the time that it takes are not checked"


def versions() -> dict[str, str]:
    """Return the versions that the verdict depends on."""
    packages = {}
    for name in ("jax", "libtpu", "posttrain"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return packages
