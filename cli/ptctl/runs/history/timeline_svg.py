"""Draw a timeline: one bar a row, its text beside it, time to the right. Pure."""

from collections.abc import Sequence
from datetime import datetime
from xml.sax.saxutils import escape

from ptctl.ui.duration import short

_WIDTH, _ROW, _LEFT, _TOP = 960, 28, 16, 56
_BAR = 380
"""Width of the whole time; texts stand to the right of it."""
_COLOURS = {"phase": "#4c78a8", "capacity": "#f2b134", "restart": "#d1495b", "end": "#333333"}
_TEXT_LENGTH = 84
Bar = tuple[str, datetime, datetime, str]


def svg_of(title: str, bars: Sequence[Bar]) -> str:
    """Return the drawing as an SVG document. Each bar: kind, begin, end (equal for a moment), text."""
    first = min((start for _, start, _, _ in bars), default=None)
    last = max((end for _, _, end, _ in bars), default=None)
    span = (last - first).total_seconds() if first and last else 0.0
    rows = [_row(index, bar, first, span) for index, bar in enumerate(bars) if first is not None]
    height = _TOP + _ROW * len(rows) + 16
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="30" font-size="16">{escape(title)} ({short(span)})</text>',
            *rows,
            "</svg>\n",
        )
    )


def _row(index: int, bar: Bar, first: datetime, span: float) -> str:
    kind, start, end, text = bar
    scale = _BAR / span if span else 0.0
    x = _LEFT + (start - first).total_seconds() * scale
    width = max((end - start).total_seconds() * scale, 3)
    y = _TOP + _ROW * index
    words = text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 1]}…"
    duration = f" ({short((end - start).total_seconds())})" if end > start else ""
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" fill="{_COLOURS[kind]}"/>'
        f'<text x="{_LEFT + _BAR + 12}" y="{y + 13}" font-size="12">{escape(words + duration)}</text>'
    )
