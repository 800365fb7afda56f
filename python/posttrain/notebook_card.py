"""What a notebook shows of runs: a card with progress, curve and last sample; a table. Pure: values to HTML.

Everything is in the text itself: styles and an inline SVG, no script and nothing fetched. All text of a run is escaped.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from posttrain.rows import Rows, is_number
from ptapi.run_directory import LOSS, REWARD
from ptctl.jobs.view import JobView

_WIDTH, _HEIGHT = 480, 96
_MOST_POINTS = 240
"""More than one for every second pixel is not visible."""
_MOST_TEXT = 600
_COLUMNS = ("name", "phase", "algorithm", "accelerator", "progress", "loss", "reward", "failure")


def run_card(job: JobView, metrics: Rows, sample: tuple[int, dict[str, Any]] | None, note: str = "") -> str:
    """Return the card of a run. sample: its step and row; note: what to say above the rest."""
    parts = [
        f"<b>{escape(job.name)}</b> {escape(job.algorithm)} on {escape(job.accelerator)}: <b>{escape(job.phase)}</b>",
        escape(note),
        _progress(job),
        _curve(metrics),
        escape(job.failure),
        _sample(*sample) if sample else "",
    ]
    return f'<div style="font-family:sans-serif;max-width:{_WIDTH}px">{"".join(map(_block, filter(None, parts)))}</div>'


def run_table(jobs: Sequence[JobView]) -> str:
    """Return a table with a line for each job."""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    lines = ("".join(f"<td>{escape(str(getattr(job, name)))}</td>" for name in _COLUMNS) for job in jobs)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _block(text: str) -> str:
    return f'<div style="margin:4px 0">{text}</div>'


def _progress(job: JobView) -> str:
    if not job.total:
        return ""
    left = f", {escape(job.eta)} left" if job.eta and not job.is_terminal else ""
    return f'<progress max="{job.total}" value="{job.step}"></progress> step {job.progress}{left}'


def _curve(metrics: Rows) -> str:
    """Return a curve of the reward, or of the loss where there is none."""
    for name in (REWARD, LOSS):
        points = [(row["step"], float(row[name])) for row in metrics if is_finite(row.get(name))]
        if len(points) > 1:
            return _svg(name, points[:: -(-len(points) // _MOST_POINTS)] + points[-1:])
    return ""


def is_finite(value: Any) -> bool:
    """Return True for a number that a curve can show."""
    return is_number(value) and abs(value) < 1e300


def _svg(name: str, points: Sequence[tuple[int, float]]) -> str:
    first, last = points[0][0], points[-1][0]
    low, high = min(y for _, y in points), max(y for _, y in points)
    span, rise = (last - first) or 1, (high - low) or 1.0
    path = " ".join(
        f"{(x - first) / span * _WIDTH:.1f},{_HEIGHT - 2 - (y - low) / rise * (_HEIGHT - 4):.1f}" for x, y in points
    )
    label = f"{name}: {points[-1][1]:.4g} at step {last} (from {low:.4g} to {high:.4g})"
    return (
        f'<svg role="img" aria-label="{label}" width="{_WIDTH}" height="{_HEIGHT}">'
        f'<polyline fill="none" stroke="#1a73e8" stroke-width="1.5" points="{path}"/></svg><div>{label}</div>'
    )


def _sample(step: int, row: dict[str, Any]) -> str:
    reward = f", reward {row['reward']:.4g}" if is_finite(row.get("reward")) else ""
    prompt, completion = (escape(str(row.get(name, ""))[-_MOST_TEXT:]) for name in ("prompt", "completion"))
    style = "white-space:pre-wrap;margin:2px 0"
    return f'sample of step {step}{reward}<pre style="{style}">{prompt}\n<b>{completion}</b></pre>'
