"""A job that fits: the smallest change of one that does not, found by the formula, confirmed by the fast compile.

Changes are tried in stages, from what leaves the result as it is to what costs most:

    the same chips      smaller micro-batches, recomputation, another split of the mesh
    less is trained     LoRA, then QLoRA
    other chips         larger slices of the generation, then other generations
    shorter rows        a half, a quarter: the model sees less of each example

and within a stage every micro-batch, split and recomputation with it. Of those that fit, the one that splits matrices
and rows least comes first (those splits cost network), then the one with the largest micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ptapi.errors import SpecError
from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError
from pttrainer.preflight import advice, chips, formula
from pttrainer.preflight.advice import Settings
from pttrainer.preflight.passes import TRAIN_STEP
from pttrainer.preflight.subject import Subject, subject

Keep = Literal["method", "chips", "length"]
"""What may not be changed: which weights are trained, the accelerator, the length of rows."""
SPLITS = (1, 2, 4, 8)
SMALLER = 6
"""Halvings of the micro-batch that are tried."""
CONFIRMED = 3
"""Candidates that the compiler may refuse before the search gives up."""


@dataclass(frozen=True)
class Candidate:
    """A change that fits by the formula. settings: paths below `spec`; empty: the job fits as it is."""

    settings: Settings
    peak: int
    available: int
    devices_per_chip: int


@dataclass(frozen=True)
class Fit:
    """What was found: the change, or none; what the compiler refused before it; and who confirmed it."""

    found: Candidate | None
    refused: list[Candidate]
    confirmed_by: str
    tried: int


def fit(job: PostTrainJob, keep: frozenset[Keep] = frozenset(), *, compile_first: bool = True) -> Fit:
    """The first change of the job that fits. Raises ConfigError where the job is wrong in itself."""
    of = subject(job.spec)
    chips.usable_bytes(of.slice)
    refused: list[Candidate] = []
    counter = itertools.count()
    for candidate in candidates(job, of, keep, lambda: next(counter)):
        confirmed = _confirmed(job, of, candidate) if compile_first else "formula"
        if confirmed is not None:
            return Fit(candidate, refused, confirmed, next(counter))
        refused.append(candidate)
        if len(refused) == CONFIRMED:
            break
    return Fit(None, refused, "fast compile" if refused else "formula", next(counter))


def candidates(
    job: PostTrainJob, of: Subject, keep: frozenset[Keep], count: Callable[[], object] = lambda: None
) -> Iterator[Candidate]:
    """What fits by the formula, the smallest change first; of each stage the best. count: called for each try."""
    for base in _stages(of, keep):
        changed = _subject(job, of, base)
        if changed is None:
            continue
        best = next(_fitting(job, of, base, changed, count), None)
        if best is not None:
            yield best


def _stages(of: Subject, keep: frozenset[Keep]) -> Iterator[Settings]:
    """What a stage changes before its layouts are tried; every one stands on the job as it is."""
    training = of.spec.training
    yield {}
    if "method" not in keep:
        if training.lora is None:
            yield {"training.lora": {}}
        if training.quantization is None:
            lora: Settings = {} if training.lora is not None else {"training.lora": {}}
            yield {**lora, "training.quantization": {"weights": "nf4"}}
    if "chips" not in keep:
        yield from (settings for _, settings in advice.other_chips(of))
    if "length" not in keep:
        for divisor in (2, 4):
            yield {"training.sequenceLength": training.sequence_length // divisor}


def _fitting(
    job: PostTrainJob, of: Subject, base: Settings, changed: Subject, count: Callable[[], object]
) -> Iterator[Candidate]:
    """The stage's layouts that fit, in the order of what they cost."""
    for layout in sorted(_layouts(changed), key=lambda each: each.cost):
        settings = {**base, **layout.settings}
        found = _subject(job, of, settings)
        count()
        if found is None:
            continue
        memory = formula.memory(found)
        if memory.fits:
            yield Candidate(settings, memory.peak, memory.available, found.slice.jax_devices_per_chip)


@dataclass(frozen=True)
class _Layout:
    """One way to run on the given chips. cost: what to prefer, the least first."""

    settings: Settings
    cost: tuple[int, ...]


def _layouts(of: Subject) -> Iterator[_Layout]:
    training = of.spec.training
    remats = ("none", "full") if of.form.remat == "none" else (of.form.remat,)
    tensors = [n for n in SPLITS if n >= of.axis("tensor") and of.config.heads % n == 0]
    sequences = [n for n in SPLITS if n >= of.axis("sequence") and training.sequence_length % n == 0]
    for tensor, sequence, remat in itertools.product(tensors, sequences, remats):
        split = tensor * sequence * of.axis("expert")
        if of.slice.devices % split:
            continue
        shards = of.slice.total_devices // (tensor * sequence)
        settings: Settings = {}
        if (tensor, sequence) != (of.axis("tensor"), of.axis("sequence")):
            fsdp = of.slice.devices // split
            mesh = {"data": of.slice.slices, "fsdp": fsdp, "tensor": tensor, "sequence": sequence}
            settings["training.parallelism"] = mesh | ({"expert": of.axis("expert")} if of.axis("expert") > 1 else {})
        if remat != of.form.remat:
            settings["training.remat"] = remat
        for micro in _micro_batches(of.micro_rows, training.batch_size, shards):
            smaller = {} if micro == of.micro_rows else {"training.microBatchSize": micro}
            changed = len(settings) + len(smaller)
            yield _Layout({**settings, **smaller}, (tensor * sequence, sequence, remat == "full", -micro, changed))


def _micro_batches(now: int, batch: int, shards: int) -> Iterator[int]:
    micro = now
    for _ in range(SMALLER):
        if micro % shards == 0 and batch % micro == 0:
            yield micro
        micro //= 2
        if micro < shards:
            return


def _subject(job: PostTrainJob, of: Subject, settings: Settings) -> Subject | None:
    """The changed job's shapes; None where the change makes no job that would be accepted."""
    try:
        return advice.changed_subject(job, of.config, settings)
    except (ConfigError, SpecError, ValueError):
        return None


def _confirmed(job: PostTrainJob, of: Subject, candidate: Candidate) -> str | None:
    """Who says that it fits; None where the compiler refuses. Where there is no compiler, the formula's word counts."""
    changed = subject(advice.changed(job.spec, candidate.settings), of.config)
    if chips.why_no_compiler(changed.slice, changed.config.family) is not None:
        return "formula"
    from pttrainer.preflight import compiler  # here: with it comes jax

    said = compiler.in_a_child(changed, TRAIN_STEP, "fast")
    if isinstance(said, str):
        return "formula"
    return "fast compile" if said[TRAIN_STEP].fits else None
