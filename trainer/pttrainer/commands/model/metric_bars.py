"""Draw the metrics of models side by side as SVG: a group of bars for each metric, on a scale of its own. Pure."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _LEFT, _BAR, _ROW, _HEAD, _TOP = 760, 16, 360, 20, 34, 12
_COLOURS = ("#4c78a8", "#f2b134", "#59a14f", "#d1495b", "#7b6ba8", "#6b7280")


def svg_of(models: Sequence[str], results: Sequence[Mapping[str, float]]) -> str:
    """Return an SVG document with one bar for each model that has the metric; text beside it names both."""
    names = list(dict.fromkeys(name for metrics in results for name in metrics))
    parts: list[str] = []
    y = _TOP
    for name in names:
        rows = [(at, metrics[name]) for at, metrics in enumerate(results) if name in metrics]
        longest = max(abs(value) for _, value in rows) or 1.0
        parts.append(f'<text x="{_LEFT}" y="{y + 18}" font-size="14" font-weight="bold">{escape(name)}</text>')
        parts += [_bar(y + _HEAD + _ROW * row, models[at], at, value, longest) for row, (at, value) in enumerate(rows)]
        y += _HEAD + _ROW * len(rows) + 8
    size = f'viewBox="0 0 {_WIDTH} {y + _TOP}" width="{_WIDTH}" height="{y + _TOP}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join((head, f'<rect width="{_WIDTH}" height="{y + _TOP}" fill="#ffffff"/>', *parts, "</svg>\n"))


def _bar(y: int, model: str, at: int, value: float, longest: float) -> str:
    """Return a bar from the left edge: its length is the value's size, its text the value with its sign."""
    width = max(1.0, abs(value) / longest * _BAR)
    label = f"{value:.4g}  {model}"
    return (
        f'<rect x="{_LEFT}" y="{y - 4}" width="{width:.1f}" height="14" fill="{_COLOURS[at % len(_COLOURS)]}"/>'
        f'<text x="{_LEFT + _BAR + 10}" y="{y + 8}" font-size="12">{escape(label)}</text>'
    )
