"""The columns of `workload list`: those of `kubectl get ptj`, and more about a job's progress.

On a terminal that is too narrow, the columns with the highest `rank` are dropped first; a pipe always gets all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ptctl.jobs.view import JobView
from ptctl.ui.duration import age
from ptctl.ui.table import GAP, widths

PHASE_COLOURS = {"Succeeded": "green", "Failed": "red", "Running": "cyan", "Restarting": "yellow", "Suspended": "dim"}


@dataclass(frozen=True)
class Column:
    """A column: its header, the function that formats its cell, and its drop order (0: never dropped)."""

    title: str
    cell: Callable[[JobView, datetime], str]
    rank: int = 0
    wide: bool = False


COLUMNS = (
    Column("NAME", lambda job, now: job.name),
    Column("PHASE", lambda job, now: "Deleting" if job.deleting else job.phase),
    Column("ALGORITHM", lambda job, now: job.algorithm, 5),
    Column("ACCELERATOR", lambda job, now: slice_label(job), 4),
    Column("STEP", lambda job, now: job.progress, 1),
    Column("LOSS", lambda job, now: job.loss, 6),
    Column("REWARD", lambda job, now: job.reward, 3),
    Column("ETA", lambda job, now: "" if job.is_terminal else job.eta, 2),
    Column("RESTARTS", lambda job, now: str(job.restarts), 8),
    Column("AGE", lambda job, now: age(job.created, now), 7),
    Column("CHIPS", lambda job, now: str(job.chips or ""), 9, wide=True),
    Column("STAGE", lambda job, now: job.stage, 9, wide=True),
    Column("QUEUE", lambda job, now: job.queue, 9, wide=True),
    Column("RUN DIRECTORY", lambda job, now: job.run_uri, 9, wide=True),
    Column("FAILURE", lambda job, now: job.failure, 9, wide=True),
)
NAMESPACE = Column("NAMESPACE", lambda job, now: job.namespace)


def slice_label(job: JobView) -> str:
    """Return the accelerator with its slice count: `v5p-128`, or `2 x v5p-128`."""
    return f"{job.slices} x {job.accelerator}" if job.slices > 1 else job.accelerator


def select_columns(wide: bool, with_namespace: bool) -> tuple[Column, ...]:
    """Return the columns of the narrow or wide table."""
    columns = COLUMNS if wide else tuple(column for column in COLUMNS if not column.wide)
    return (NAMESPACE, *columns) if with_namespace else columns


def columns_that_fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Return the indices of the columns that fit `width`, dropping the highest ranks first; all where width is None."""
    kept = list(range(len(columns)))
    if width is None:
        return kept
    sizes = widths([[column.title for column in columns], *rows])
    for index in sorted(kept, key=lambda i: -columns[i].rank):
        if sum(sizes[i] + GAP for i in kept) - GAP <= width or columns[index].rank == 0:
            break
        kept.remove(index)
    return kept
