"""Find the smallest change that makes a job fit, by the formula, confirmed by the compiler.

Changes are tried in stages, from those that keep the result to the most costly:

    the same chips      smaller micro-batches, recomputation, another split of the mesh
    fewer weights       LoRA, then QLoRA
    other chips         larger slices of the generation, then other generations
    shorter rows        a half, a quarter: the model sees less of each example

Within a stage every micro-batch, split and recomputation is combined. Of those that fit, the one that splits matrices
and rows least comes first (those splits cost network), then the one with the largest micro-batch. The unchanged job is
compiled unless it is clearly too large: near the limit the formula is not decisive. Once the compiler has refused one,
all later candidates are judged by the formula times the compiler's need over the formula's.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ptapi.errors import SpecError
from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError
from pttrainer.preflight.advice import best_split, changes
from pttrainer.preflight.advice.changes import Settings
from pttrainer.preflight.memory import formula, recomputation
from pttrainer.preflight.memory.staged_check import HOPELESS, check_memory
from pttrainer.preflight.shapes import tpu_topology
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.shapes.passes import TRAIN_STEP

Keep = Literal["method", "chips", "length"]
"""What must not change: the training method, the accelerator, the length of rows."""
SPLITS = (1, 2, 4, 8)
MICRO_BATCHES = 8
"""Number of micro-batch sizes to try: its own, and the next smaller ones."""
REFUSED = 4
"""Candidates that the compiler may refuse before the search gives up."""


@dataclass(frozen=True)
class Candidate:
    """A change that should fit by the formula, possibly corrected by the compiler.

    peak: by the formula, or by the compiler if it was asked. settings: paths below `spec`; empty: the unchanged
    job. step_seconds: by the compiler's estimates, if it was compiled as training compiles it.
    """

    settings: Settings
    peak: int
    available: int
    devices_per_chip: int
    step_seconds: float | None = None


@dataclass(frozen=True)
class Fit:
    """The result: the change, or none; the candidates that the compiler refused before it; and who confirmed it.

    notes: on the job with the change, such as a split of its chips that wastes less.
    """

    change: Candidate | None
    refused: list[Candidate]
    confirmed_by: str
    tried: int
    notes: list[str] = field(default_factory=list)


def fit(job: PostTrainJob, keep: frozenset[Keep] = frozenset(), *, compile_first: bool = True) -> Fit:
    """Return the first change that makes the job fit; raise ConfigError if the job is invalid."""
    of = shapes_of(job.spec)
    tpu_topology.usable_bytes(of.slice)
    search = _Search(job, of)
    refused: list[Candidate] = []
    by = "formula"
    for candidate in search.candidates(keep, is_compiled=compile_first):
        shapes = search.shapes_of(candidate.settings)
        check = check_memory(shapes, "auto" if compile_first else "formula")
        checked = replace(candidate, peak=check.peak, step_seconds=check.decisive[TRAIN_STEP].step_seconds)
        by = "formula" if check.is_computed else f"{check.stage} compile"
        if check.fits:
            return Fit(checked, refused, by, search.tried, best_split.notes(recomputation.settled(shapes), shapes.spec))
        if not check.is_computed:
            refused.append(checked)
            search.factor = max(check.peak, check.available) / candidate.peak
        if len(refused) == REFUSED:
            break
    return Fit(None, refused, by, search.tried)


class _Search:
    """State of the search. factor: the job's actual need over the formula's estimate, as far as known."""

    def __init__(self, job: PostTrainJob, of: JobShapes) -> None:
        self._job, self._of = job, of
        self.factor, self.tried = 1.0, 0

    def candidates(self, keep: frozenset[Keep], *, is_compiled: bool) -> Iterator[Candidate]:
        """Yield candidates that fit by the current formula, the smallest change first.

        The best of each stage and, as long as the compiler refuses, the next of the stage.
        """
        as_it_is = self._candidate({}, HOPELESS if is_compiled else 1.0)
        if as_it_is is not None:
            yield as_it_is
        for base in _stages(self._of, keep):
            yield from self._of_stage(base)

    def shapes_of(self, settings: Settings) -> JobShapes:
        """Return the changed job's shapes; raise ConfigError, SpecError or ValueError if the job is invalid."""
        return changes.changed_shapes(self._job, self._of.config, settings)

    def _of_stage(self, base: Settings) -> Iterator[Candidate]:
        """Yield the stage's layouts, in order of cost."""
        changed = self._shapes(base)
        for layout in sorted(_layouts(changed), key=lambda each: each.cost) if changed is not None else ():
            settings = {**base, **layout.settings}
            candidate = self._candidate(settings) if settings else None  # as it is, it was asked about first
            if candidate is not None:
                yield candidate

    def _candidate(self, settings: Settings, most: float = 1.0) -> Candidate | None:
        """Return the changed job, unless it needs more than `most` times the available memory."""
        self.tried += 1
        shapes = self._shapes(settings)
        if shapes is None:
            return None
        memory = formula.memory(shapes)
        if memory.peak * self.factor >= most * memory.available:
            return None
        return Candidate(settings, memory.peak, memory.available, shapes.slice.jax_devices_per_chip)

    def _shapes(self, settings: Settings) -> JobShapes | None:
        try:
            return self.shapes_of(settings)
        except (ConfigError, SpecError, ValueError):
            return None


def _stages(of: JobShapes, keep: frozenset[Keep]) -> Iterator[Settings]:
    """Yield the base settings of each stage; every stage starts from the unchanged job."""
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
    """One way to run on the given chips. cost: sort key, the lowest first."""

    settings: Settings
    cost: tuple[int, ...]


def _layouts(of: JobShapes) -> Iterator[_Layout]:
    training = of.spec.training
    remats = dict.fromkeys((of.structure.remat, "full"))
    tensors = [n for n in SPLITS if n >= of.axis("tensor") and of.config.heads % n == 0]
    sequences = [of.axis("sequence"), *changes.sequences(of)]
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
        if remat != of.structure.remat:
            settings["training.remat"] = remat
        for micro in changes.micro_batches(of.micro_rows, training.batch_size, shards)[:MICRO_BATCHES]:
            smaller = {} if micro == of.micro_rows else {"training.microBatchSize": micro}
            changed = len(settings) + len(smaller)
            yield _Layout({**settings, **smaller}, (tensor * sequence, tensor, remat == "full", -micro, changed))
