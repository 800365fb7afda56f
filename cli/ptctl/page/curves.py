"""A run's metrics in columns, and a metric as few enough points to draw. Pure.

Columns grow as lines of metrics.jsonl arrive, so 100,000 steps are parsed once. A curve has at most `width` buckets,
each with its lowest, highest and mean value: no spike is lost, whatever the zoom.
"""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

By = Literal["step", "time"]
_NOT_DRAWN = ("step", "time")
_LARGEST = 1e300
"""What is larger, infinite or no number is not drawn."""


class Curve(NamedTuple):
    """Points of one metric. low, high: empty where every point is one value. per_point: values of a point, at most."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    per_point: int


class _Column(NamedTuple):
    """The finite values of a metric, and the row of each."""

    rows: array[int]
    values: array[float]


class MetricColumns:
    """Every metric of a run by its rows. A step that comes again, after a restart, replaces it and all later ones."""

    def __init__(self, *, is_whole: bool = True) -> None:
        """is_whole: False of an outline, which has some of the rows alone."""
        self.is_whole = is_whole
        self._steps: array[int] = array("q")
        self._times: array[float] = array("d")
        self._columns: dict[str, _Column] = {}

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def names(self) -> list[str]:
        """Return the metrics that have a value."""
        return [name for name, column in self._columns.items() if column.values]

    @property
    def last_step(self) -> int | None:
        """Return the newest step."""
        return self._steps[-1] if self._steps else None

    def read(self, lines: Iterable[bytes]) -> None:
        """Add the rows of these lines; what is no row is left out."""
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                self._add(row)

    def latest(self, name: str) -> float | None:
        """Return the newest value of a metric."""
        column = self._columns.get(name)
        return column.values[-1] if column and column.values else None

    def curve(self, name: str, by: By, low: float | None, high: float | None, width: int) -> Curve:
        """Return a metric over steps, or over seconds since the first row, between two of them, in `width` buckets."""
        column = self._columns.get(name, _Column(array("q"), array("d")))
        first, last = self._window(by, low, high)
        start, end = bisect_left(column.rows, first), bisect_left(column.rows, last)
        size = end - start
        edges = [start + size * i // width for i in range(width + 1)] if size > width else list(range(start, end + 1))
        middles = [column.rows[(a + b - 1) // 2] for a, b in pairwise(edges)]
        shown_at = [*middles[:-1], column.rows[end - 1]] if size else []  # a run's end is where it is
        return _curve([self._x(by, row) for row in shown_at], [column.values[a:b] for a, b in pairwise(edges)])

    def _add(self, row: dict[str, Any]) -> None:
        if self._steps and row["step"] <= self._steps[-1]:
            self._cut(bisect_left(self._steps, row["step"]))
        index, time = len(self._steps), row.get("time")
        self._steps.append(row["step"])
        self._times.append(time if isinstance(time, (int, float)) else (self._times or [0.0])[-1])
        columns = self._columns
        for name, value in row.items():
            kind = type(value)
            if (kind is float or kind is int) and -_LARGEST < value < _LARGEST and name not in _NOT_DRAWN:
                column = columns.get(name)
                if column is None:
                    column = columns[name] = _Column(array("q"), array("d"))
                column[0].append(index)
                column[1].append(value)

    def _cut(self, length: int) -> None:
        del self._steps[length:], self._times[length:]
        for column in self._columns.values():
            kept = bisect_left(column.rows, length)
            del column.rows[kept:], column.values[kept:]

    def _x(self, by: By, row: int) -> float:
        return float(self._steps[row]) if by == "step" else self._times[row] - self._times[0]

    def _window(self, by: By, low: float | None, high: float | None) -> tuple[int, int]:
        key: Sequence[float] = self._steps if by == "step" else self._times
        offset = 0.0 if by == "step" or not self._times else self._times[0]
        first = 0 if low is None else bisect_left(key, low + offset)
        return first, len(key) if high is None else bisect_right(key, high + offset)


def _curve(x: list[float], parts: list[array[float]]) -> Curve:
    """Return a point for each part of the values."""
    means = [_short(math.fsum(part) / len(part)) for part in parts]
    count = max(map(len, parts), default=0)
    if count <= 1:
        return Curve(x, means, [], [], count)
    return Curve(x, means, [_short(min(part)) for part in parts], [_short(max(part)) for part in parts], count)


def _short(value: float) -> float:
    """Return six significant digits, which no screen shows more of."""
    return float(f"{value:.6g}")
