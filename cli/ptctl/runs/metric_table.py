"""Metrics for reading: a table of steps, a curve of one metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptctl.errors import MissingError
from ptctl.runs.plot import curve
from ptctl.ui.table import GAP, widths
from ptctl.ui.table import table as lay_out

Row = dict[str, Any]

FIRST = (
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
"""The columns of the table, in their order; the last go first on a narrow terminal."""
_HIDDEN = ("time",)


def table(rows: Sequence[Row], width: int | None, *, wide: bool) -> str:
    """The usual metrics that these steps have, as many as fit; with `wide` all metrics, wherever they end."""
    present = {key for row in rows for key, value in row.items() if _is_number(value) and key not in _HIDDEN}
    names = [name for name in FIRST if name in present]
    if wide:
        names, width = names + sorted(present - set(FIRST)), None
    cells = [[number(row.get(name)) for name in names] for row in rows]
    sizes = widths([names, *cells])
    while width is not None and len(names) > 1 and sum(sizes) + GAP * (len(sizes) - 1) > width:
        names, sizes, cells = names[:-1], sizes[:-1], [row[:-1] for row in cells]
    return lay_out([name.upper() for name in names], cells)


def plot(rows: Sequence[Row], name: str, width: int | None) -> str:
    """The metric over its steps. Raises MissingError, naming the metrics there are."""
    points = [(row["step"], float(row[name])) for row in rows if _is_number(row.get(name))]
    if not points:
        known = sorted({key for row in rows for key, value in row.items() if _is_number(value)} - {"step", *_HIDDEN})
        raise MissingError(f"no metric {name!r}; there are: {', '.join(known)}")
    return curve([step for step, _ in points], [value for _, value in points], name, min(width or 80, 100))


def number(value: Any) -> str:
    """Four digits that matter; empty for none."""
    if not _is_number(value):
        return ""
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
