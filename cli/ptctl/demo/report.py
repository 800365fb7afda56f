"""How the demo ends: what was learned, as a table, a curve and a picture, and what to type next."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptapi.run_directory import COMPLETION_LENGTH, EVAL_REWARD, REWARD
from ptctl.demo.paths import GRPO, SFT, Place
from ptctl.runs import files
from ptctl.runs.plot import curve
from ptctl.ui.table import table

Row = dict[str, Any]


@dataclass(frozen=True)
class Accuracy:
    """Share of held-out problems that greedy completions solve; None where it was not measured."""

    before: float | None
    after_sft: float | None
    after_grpo: float | None


def accuracy(place: Place) -> Accuracy:
    """Read from the metrics of the two runs. GRPO's first measurement is that of SFT's export."""
    imitation = _held_out(files.metrics(place.run(SFT)))
    reward = _held_out(files.metrics(place.run(GRPO)))
    after_sft = reward[0] if reward else (imitation[-1] if len(imitation) > 1 else None)
    return Accuracy(imitation[0] if imitation else None, after_sft, reward[-1] if len(reward) > 1 else None)


def _held_out(rows: list[Row]) -> list[float]:
    return [float(row[EVAL_REWARD]) for row in rows if EVAL_REWARD in row]


def accuracy_table(found: Accuracy, seconds: dict[str, float]) -> str:
    """The three numbers, what each step gained, and what it took."""
    rows, last = [], None
    for title, value, spent in (
        ("before training", found.before, None),
        ("after SFT", found.after_sft, seconds.get(SFT)),
        ("after GRPO", found.after_grpo, seconds.get(GRPO)),
    ):
        gain = f"{100 * (value - last):+.0f} points" if value is not None and last is not None else ""
        rows.append(
            (title, "not measured" if value is None else f"{value:.1%}", gain, f"{spent:.0f} s" if spent else "")
        )
        last = value
    return table(("HELD-OUT ACCURACY", "GREEDY", "GAIN", "TIME"), rows)


def reward_curve(place: Place, width: int) -> str:
    """Mean reward of each GRPO step, as text; empty if there is none."""
    steps, values = _series(place, REWARD)
    return curve(steps, values, "mean reward of the sampled completions, by GRPO step", width) if steps else ""


def draw_picture(place: Place) -> Path:
    """Reward and completion length over GRPO's steps, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*_series(place, REWARD), color="tab:blue", label="mean reward")
    axes.set(
        xlabel="GRPO step", ylabel="mean reward", ylim=(0, 1.02), title="Sums of six numbers: reward while training"
    )
    lengths = _series(place, COMPLETION_LENGTH)
    if lengths[0]:
        other = axes.twinx()
        other.plot(*lengths, color="tab:orange", alpha=0.6, label="completion length")
        other.set(ylabel="tokens per completion")
        figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(place.picture, dpi=120)
    return place.picture


def _series(place: Place, name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in files.metrics(place.run(GRPO)) if name in row]
    return [float(row["step"]) for row in rows], [float(row[name]) for row in rows]


def what_next(place: Place) -> str:
    """Commands to copy: looking around, and tearing down."""
    ptctl = own_command()
    kubectl = "" if shutil.which("kubectl") else "      # kubectl is not installed here"
    return f"""\
TensorBoard  {place.runs}
  pip install tensorboard && tensorboard --logdir {place.runs}

What to type next (the cluster of the demo goes on running)
  eval "$({ptctl} local env)"
  kubectl get ptj{kubectl}
  {ptctl} workload list
  {ptctl} workload describe {GRPO}
  {ptctl} workload samples {GRPO}              # what the model says now
  {ptctl} workload samples {GRPO} --step 1     # and what it said at first
  {ptctl} workload metrics {GRPO} --plot completion_length
  {ptctl} workload get {GRPO} -o yaml          # the job: a start for your own

How to tear down
  {ptctl} local down                # stops the cluster; `{ptctl} local up` brings it back
  {ptctl} local reset               # stops it and forgets everything in it
  rm -r {place.folder}"""


def own_command() -> str:
    """How this program is called here: `ptctl` where that is on the PATH, else its file."""
    if shutil.which("ptctl"):
        return "ptctl"
    own = Path(sys.argv[0])
    return _short(own) if own.name == "ptctl" else f"{_short(Path(sys.executable))} -m ptctl"


def _short(path: Path) -> str:
    """Relative where that is shorter to type and read."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
