"""Metrics for reading: a table of steps, or a plot of one metric."""

from collections.abc import Sequence
from typing import Any

from ptctl.errors import MissingError
from ptctl.runs.plot import curve
from ptctl.ui.table import GAP, widths
from ptctl.ui.table import table as lay_out

Row = dict[str, Any]

USUAL_METRICS = (
    "step",
    "loss",
    "reward",
    "eval/reward",
    "eval/loss",
    "completion_length",
    "kl",
    "entropy",
    "staleness",
    "grad_norm",
    "learning_rate",
    "tokens_per_second",
    "mfu",
    "goodput",
)
"""The columns of the table in order; a narrow terminal drops the last ones."""
_HIDDEN = ("time",)
_LARGEST = 1e300
"""What is larger, infinite or no number is not shown."""


def table(rows: Sequence[Row], width: int | None, *, wide: bool) -> str:
    """Return a table of the usual metrics of these steps, as many as fit; with `wide`, of all metrics."""
    present = {key for row in rows for key, value in row.items() if _is_number(value) and key not in _HIDDEN}
    names = [name for name in USUAL_METRICS if name in present]
    if wide:
        names, width = names + sorted(present - set(USUAL_METRICS)), None
    cells = [[number(row.get(name)) for name in names] for row in rows]
    sizes = widths([names, *cells])
    while width is not None and len(names) > 1 and sum(sizes) + GAP * (len(sizes) - 1) > width:
        names, sizes, cells = names[:-1], sizes[:-1], [row[:-1] for row in cells]
    return lay_out([name.upper() for name in names], cells)


def plot(rows: Sequence[Row], name: str, width: int | None) -> str:
    """Plot the metric over its steps. Raises MissingError with the metrics that exist."""
    points = [(row["step"], float(row[name])) for row in rows if _is_number(row.get(name))]
    if not points:
        available = sorted(
            {key for row in rows for key, value in row.items() if _is_number(value)} - {"step", *_HIDDEN}
        )
        raise MissingError(f"no metric {name!r}; available: {', '.join(available)}")
    return curve([step for step, _ in points], [value for _, value in points], name, min(width or 80, 100))


def number(value: Any) -> str:
    """Format a number with four significant digits; empty for anything else."""
    if not _is_number(value):
        return ""
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST
