"""A job that fits: the smallest change of one that does not, found by the formula, confirmed as `ptctl plan` would.

Changes are tried in stages, from what leaves the result as it is to what costs most:

    the same chips      smaller micro-batches, recomputation, another split of the mesh
    less is trained     LoRA, then QLoRA
    other chips         larger slices of the generation, then other generations
    shorter rows        a half, a quarter: the model sees less of each example

and within a stage every micro-batch, split and recomputation with it. Of those that fit, the one that splits matrices
and rows least comes first (those splits cost network), then the one with the largest micro-batch. The job as it is is
compiled unless it is hopeless: near the limit the formula decides nothing. Once the compiler has refused one, all that
come after it are judged by the formula times what the compiler said over what the formula had said.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ptapi.errors import SpecError
from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError
from pttrainer.preflight.advice import changes
from pttrainer.preflight.advice.changes import Settings
from pttrainer.preflight.memory import formula
from pttrainer.preflight.memory.staged_check import HOPELESS, weigh
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import Subject, subject

Keep = Literal["method", "chips", "length"]
"""What may not be changed: which weights are trained, the accelerator, the length of rows."""
SPLITS = (1, 2, 4, 8)
MICRO_BATCHES = 8
"""Sizes of the micro-batch that are tried: its own, and the next smaller ones."""
REFUSED = 4
"""Candidates that the compiler may refuse before the search gives up."""


@dataclass(frozen=True)
class Candidate:
    """A change that should fit by the formula, which the compiler may have corrected; peak: by the formula, or by the
    compiler where it was asked. settings: paths below `spec`; empty: the job as it is."""

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
    tpu_topology.usable_bytes(of.slice)
    search = _Search(job, of)
    refused: list[Candidate] = []
    by = "formula"
    for candidate in search.candidates(keep, is_compiled=compile_first):
        said = weigh(search.subject_of(candidate.settings), "auto" if compile_first else "formula")
        told = replace(candidate, peak=said.peak)
        by = "formula" if said.is_computed else f"{said.stage} compile"
        if said.fits:
            return Fit(told, refused, by, search.tried)
        if not said.is_computed:
            refused.append(told)
            search.factor = max(said.peak, said.available) / candidate.peak
        if len(refused) == REFUSED:
            break
    return Fit(None, refused, by, search.tried)


class _Search:
    """What was tried so far. factor: by how much more than the formula says a job needs, as far as is known."""

    def __init__(self, job: PostTrainJob, of: Subject) -> None:
        self._job, self._of = job, of
        self.factor, self.tried = 1.0, 0

    def candidates(self, keep: frozenset[Keep], *, is_compiled: bool) -> Iterator[Candidate]:
        """What fits by the formula as it is known when the next one is asked for, the smallest change first: of each
        stage the best, and, as long as the compiler refuses, the next of the stage."""
        as_it_is = self._candidate({}, HOPELESS if is_compiled else 1.0)
        if as_it_is is not None:
            yield as_it_is
        for base in _stages(self._of, keep):
            yield from self._of_stage(base)

    def subject_of(self, settings: Settings) -> Subject:
        """The changed job's shapes; raises ConfigError, SpecError or ValueError where it is no job that is accepted."""
        return changes.changed_subject(self._job, self._of.config, settings)

    def _of_stage(self, base: Settings) -> Iterator[Candidate]:
        """The stage's layouts, in the order of what they cost."""
        changed = self._subject(base)
        for layout in sorted(_layouts(changed), key=lambda each: each.cost) if changed is not None else ():
            settings = {**base, **layout.settings}
            found = self._candidate(settings) if settings else None  # as it is, it was asked about first
            if found is not None:
                yield found

    def _candidate(self, settings: Settings, most: float = 1.0) -> Candidate | None:
        """The changed job, unless it needs `most` times what there is."""
        self.tried += 1
        found = self._subject(settings)
        if found is None:
            return None
        memory = formula.memory(found)
        if memory.peak * self.factor >= most * memory.available:
            return None
        return Candidate(settings, memory.peak, memory.available, found.slice.jax_devices_per_chip)

    def _subject(self, settings: Settings) -> Subject | None:
        try:
            return self.subject_of(settings)
        except (ConfigError, SpecError, ValueError):
            return None


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
        yield from (settings for _, settings in changes.other_chips(of))
    if "length" not in keep:
        for divisor in (2, 4):
            yield {"training.sequenceLength": training.sequence_length // divisor}


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
        for micro in changes.micro_batches(of.micro_rows, training.batch_size, shards)[:MICRO_BATCHES]:
            smaller = {} if micro == of.micro_rows else {"training.microBatchSize": micro}
            changed = len(settings) + len(smaller)
            yield _Layout({**settings, **smaller}, (tensor * sequence, sequence, remat == "full", -micro, changed))
