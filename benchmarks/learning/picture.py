"""A task's curves: a panel per trial with the metric over the steps, a thin line per seed and a thick one for their
mean, and the bar as a dotted line. A trial that others go on from has none where there are others: its steps are not
theirs, and its end is their beginning."""

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from task import Task, Trial
from trial import Outcome

COLUMNS = 3
"""At most."""
LEGEND_COLUMNS = 7
"""That fit below the panels."""
SHADES = 128
"""That a picture has: enough for ten lines and their edges, in a third of the bytes."""


def draw(task: Task, outcomes: Sequence[Outcome]) -> bytes:
    """A PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    starts = {need.split("/")[1] for trial in task.trials for need in trial.needs if need.startswith(f"{task.name}/")}
    runs = {trial: [outcome for outcome in outcomes if outcome.trial == trial.name] for trial in task.trials}
    drawn = [trial for trial in task.trials if trial.name not in starts and runs[trial]] or list(task.trials)
    rows = math.ceil(len(drawn) / COLUMNS)
    columns = math.ceil(len(drawn) / rows)
    figure = Figure(figsize=(max(2.6 * columns, 4.5), 2.3 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colors = {seed: f"C{number}" for number, seed in enumerate(sorted({outcome.seed for outcome in outcomes}))}
    for axes, trial in zip(grid.flat, drawn, strict=False):
        _panel(axes, trial, runs[trial], colors)
    for axes in list(grid.flat)[len(drawn) :]:
        axes.set_visible(False)
    lines = [grid.flat[0].plot([], [], color=color, label=f"seed {seed}")[0] for seed, color in colors.items()]
    lines += grid.flat[0].plot([], [], color="black", linewidth=2, label="mean")
    per_line = math.ceil(len(lines) / math.ceil(len(lines) / LEGEND_COLUMNS))
    figure.legend(handles=lines, loc="outside lower center", ncols=per_line, fontsize=8, frameon=False)
    figure.suptitle(task.title, fontsize=11)
    figure.supylabel("held-out problems solved", fontsize=9)
    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, format="png", dpi=90)
    Image.open(whole).convert("RGB").quantize(SHADES).save(small, "png", optimize=True)
    return small.getvalue()


def _panel(axes: Any, trial: Trial, runs: Sequence[Outcome], colors: Mapping[int, str]) -> None:
    """One trial; its title says where it began and ended."""
    for outcome in runs:
        axes.plot(*zip(*outcome.curve, strict=True), color=colors[outcome.seed], alpha=0.8, linewidth=1.2)
    title = trial.name
    if runs:
        steps, mean = mean_curve([outcome.curve for outcome in runs])
        axes.plot(steps, mean, color="black", linewidth=2)
        title += f": {mean[0]:.0%} to {mean[-1]:.0%}"
    for level, color in ((trial.bar.least, "grey"), (trial.bar.below, "red")):
        if level is not None:
            axes.axhline(level, color=color, linestyle=":", linewidth=1)
    axes.set_ylim(-0.03, 1.03)
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("step", fontsize=8)
    axes.label_outer()


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[list[float], list[float]]:
    """Over the steps that all of them have."""
    values = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(curve) for curve in values)))
    return steps, [statistics.mean(curve[step] for curve in values) for step in steps]
