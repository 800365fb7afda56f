"""Plots drawn with characters: braille dots (2 x 4 in a cell) between two axes, and one-line sparklines."""

import itertools
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the values as bars between their minimum and maximum; average groups of them where they do not fit."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1))] for mean in means)


def curve(xs: Sequence[float], ys: Sequence[float], title: str, width: int, height: int = 12) -> str:
    """Draw the points, joined by lines, in a frame of `width` x `height` cells with labels."""
    low, high = _range(ys)
    labels = [f"{low + (high - low) * (height - 1 - row) / (height - 1):.3g}" for row in range(height)]
    left = max(map(len, labels))
    cells = _draw(xs, ys, low, high, max(8, width - left - 2), height)
    rows = [
        f"{label if row % 3 == 0 or row == height - 1 else '':>{left}} ┤{cells[row]}"
        for row, label in enumerate(labels)
    ]
    first, last = f"{xs[0]:g}", f"{xs[-1]:g}"
    axis = f"{'':>{left}} └{'─' * len(cells[0])}"
    ends = f"{'':>{left}}  {first}{last:>{max(1, len(cells[0]) - len(first))}}"
    return "\n".join([f"{'':>{left}}  {title}", *rows, axis, ends])


def _range(ys: Sequence[float]) -> tuple[float, float]:
    low, high = min(ys), max(ys)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _draw(xs: Sequence[float], ys: Sequence[float], low: float, high: float, width: int, height: int) -> list[str]:
    columns, rows = 2 * width, 4 * height
    span = (xs[-1] - xs[0]) or 1.0
    points = [
        (round((x - xs[0]) / span * (columns - 1)), round((high - y) / (high - low) * (rows - 1)))
        for x, y in zip(xs, ys, strict=True)
    ]
    grid = [[_BLANK] * width for _ in range(height)]
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        count = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(count + 1):
            x, y = x0 + (x1 - x0) * i // count, y0 + (y1 - y0) * i // count
            grid[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(map(chr, row)) for row in grid]
