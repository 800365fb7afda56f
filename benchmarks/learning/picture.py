"""A task's curves: the metric over the steps, a thin line per seed and a thick one for their mean."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence

from task import Task
from trial import Outcome


def draw(task: Task, outcomes: Sequence[Outcome]) -> bytes:
    """A PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # A start that others go on from is drawn only where there is nothing else: its steps are not theirs.
    starts = {need.split("/")[1] for trial in task.trials for need in trial.needs if need.startswith(f"{task.name}/")}
    drawn = [trial for trial in task.trials if trial.name not in starts] or list(task.trials)
    for number, trial in enumerate(drawn):
        runs = [outcome for outcome in outcomes if outcome.trial == trial.name]
        for outcome in runs:
            axes.plot(*zip(*outcome.curve, strict=True), color=f"C{number}", alpha=0.25, linewidth=1)
        if runs:
            steps, mean = mean_curve([outcome.curve for outcome in runs])
            axes.plot(steps, mean, color=f"C{number}", label=trial.name, marker=".")
    least = next((trial.bar.least for trial in reversed(drawn) if trial.bar.least is not None), None)
    if least is not None:
        axes.axhline(least, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel="step", ylabel="held-out problems solved", ylim=(-0.02, 1.02), title=task.title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=81)
    return buffer.getvalue()


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[list[float], list[float]]:
    """Over the steps that all of them have."""
    values = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(curve) for curve in values)))
    return steps, [statistics.mean(curve[step] for curve in values) for step in steps]
