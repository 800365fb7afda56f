"""One job on many chips with many batch sizes: what fits, with how much memory, and how fast it can be at best.

Uses the formula, so a hundred cells take seconds; check an interesting cell with `ptctl plan`. The mesh of a cell is
the job's own `sequence` and `expert`, its `tensor` or the next larger one that fits, the rest `fsdp` (and `data` over
slices). A micro-batch that does not divide is dropped: then a cell is one pass over its batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ptapi import accelerators
from ptapi.errors import SpecError
from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError
from pttrainer.models import ModelConfig
from pttrainer.preflight.advice import changes
from pttrainer.preflight.advice.changes import Settings
from pttrainer.preflight.memory import formula, recomputation
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.timing.step_time import estimate

FACTORS = (0.5, 1, 2, 4)
"""Default batch sizes, as multiples of the job's."""
GIB = 2**30


@dataclass(frozen=True)
class Cell:
    """One accelerator with one batch size; memory per chip. tensor: over how many devices matrices are split.

    why: reason for a missing answer, else empty. seconds, tokens: lower bound of a step, and upper bound per second
    over all chips (`step_time`, without the network).
    """

    accelerator: str
    generation: str
    chips: int
    batch_size: int
    tensor: int | None = None
    fits: bool = False
    peak_gib: float | None = None
    available_gib: float | None = None
    seconds_per_step: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_chip: float | None = None
    why: str = ""


def matrix(job: PostTrainJob, names: Sequence[str] = (), batches: Sequence[int] = ()) -> list[Cell]:
    """Return a cell for each accelerator and batch size, in that order; raise ConfigError if the job is invalid.

    names, batches: by default the smallest slice of each generation that holds the job, and the next larger one;
    and half, once, twice and four times its batch.
    """
    of = shapes_of(job.spec)
    sizes = batches or [int(of.spec.training.batch_size * factor) for factor in FACTORS]
    chosen = names or _usual(of)
    return [_cell(job, of, name, batch) for name in chosen for batch in sizes if batch]


def _usual(of: JobShapes) -> list[str]:
    """Return the smallest slice of each generation that holds the job, and twice that."""
    slices: list[str] = []
    for option in changes.smallest(of):
        name = option.settings["accelerator"]["type"]
        usual = list(changes.usual(accelerators.resolve(name).generation))
        larger = [other for other in usual if accelerators.resolve(other).chips == 2 * option.chips]
        slices += [name, *larger[:1]]
    return slices


def _cell(job: PostTrainJob, of: JobShapes, name: str, batch: int) -> Cell:
    """Return the cell with the first mesh that fits, else the first valid one; else why there is none."""
    slice_ = accelerators.resolve(name, slices=of.spec.accelerator.slices)
    empty = Cell(slice_.describe(), slice_.generation, slice_.total_chips, batch)
    tried = [_shapes(job, of.config, settings) for settings in _settings(of, name, batch)]
    valid = [_answered(empty, one) for one in tried if isinstance(one, JobShapes)]
    if not valid:
        return replace(empty, why=str(tried[0]))
    return next((cell for cell in valid if cell.fits), valid[0])


def _settings(of: JobShapes, name: str, batch: int) -> Iterator[Settings]:
    micro = of.spec.training.micro_batch_size
    for tensor in sorted({of.axis("tensor"), *changes.TENSOR}):
        axes = {"tensor": tensor, "sequence": of.axis("sequence"), "expert": of.axis("expert")}
        if tensor >= of.axis("tensor") and of.config.heads % tensor == 0:
            for size in (micro, None) if micro is not None else (None,):
                yield {
                    "accelerator": {"type": name, "slices": of.spec.accelerator.slices},
                    "training.parallelism": axes,
                    "training.batchSize": batch,
                    "training.microBatchSize": size,
                }


def _answered(cell: Cell, of: JobShapes) -> Cell:
    of = recomputation.settled(of)
    memory, time = formula.memory(of), estimate(of, None)
    scale = of.slice.jax_devices_per_chip / GIB
    return replace(
        cell,
        tensor=of.axis("tensor"),
        fits=memory.fits,
        peak_gib=memory.peak * scale,
        available_gib=memory.available * scale,
        seconds_per_step=time.seconds,
        tokens_per_second=time.tokens_per_second_per_chip * cell.chips,
        tokens_per_second_per_chip=time.tokens_per_second_per_chip,
    )


def _shapes(job: PostTrainJob, config: ModelConfig, settings: Settings) -> JobShapes | str:
    """Return the changed job's shapes, or why the job is invalid."""
    try:
        return changes.changed_shapes(job, config, settings)
    except SpecError as error:
        return "; ".join(str(finding) for finding in error.findings)
    except (ConfigError, ValueError) as error:
        return str(error)
