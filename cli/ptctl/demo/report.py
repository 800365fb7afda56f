"""Report the demo's results: a table, a curve and a picture, and what to type next."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptapi.run_directory import COMPLETION_LENGTH, EVAL_REWARD, REWARD
from ptctl.demo.paths import GRPO, SFT, DemoPaths
from ptctl.runs.plot import curve
from ptctl.runs.storage import directory
from ptctl.ui.table import table

Row = dict[str, Any]


@dataclass(frozen=True)
class Accuracy:
    """Share of held-out problems solved by greedy completions; None where it was not measured."""

    before: float | None
    after_sft: float | None
    after_grpo: float | None


def accuracy(paths: DemoPaths) -> Accuracy:
    """Return the accuracies from the metrics of the two runs. GRPO's first measurement is that of SFT's export."""
    sft_rewards = _held_out_rewards(directory.metrics(paths.run(SFT)))
    grpo_rewards = _held_out_rewards(directory.metrics(paths.run(GRPO)))
    after_sft = grpo_rewards[0] if grpo_rewards else (sft_rewards[-1] if len(sft_rewards) > 1 else None)
    after_grpo = grpo_rewards[-1] if len(grpo_rewards) > 1 else None
    return Accuracy(sft_rewards[0] if sft_rewards else None, after_sft, after_grpo)


def _held_out_rewards(rows: list[Row]) -> list[float]:
    return [float(row[EVAL_REWARD]) for row in rows if EVAL_REWARD in row]


def accuracy_table(result: Accuracy, seconds: dict[str, float]) -> str:
    """Format the three accuracies with the gain and duration of each training run."""
    rows, last = [], None
    for title, value, spent in (
        ("before training", result.before, None),
        ("after SFT", result.after_sft, seconds.get(SFT)),
        ("after GRPO", result.after_grpo, seconds.get(GRPO)),
    ):
        gain = f"{100 * (value - last):+.0f} points" if value is not None and last is not None else ""
        rows.append(
            (title, "not measured" if value is None else f"{value:.1%}", gain, f"{spent:.0f} s" if spent else "")
        )
        last = value
    return table(("HELD-OUT ACCURACY", "GREEDY", "GAIN", "TIME"), rows)


def reward_curve(paths: DemoPaths, width: int) -> str:
    """Plot the mean reward of each GRPO step as text; empty if there is none."""
    steps, values = _series(paths, REWARD)
    return curve(steps, values, "mean reward of the sampled completions, by GRPO step", width) if steps else ""


def draw_picture(paths: DemoPaths) -> Path:
    """Draw reward and completion length over GRPO's steps as a PNG and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*_series(paths, REWARD), color="tab:blue", label="mean reward")
    axes.set(
        xlabel="GRPO step", ylabel="mean reward", ylim=(0, 1.02), title="Sums of six numbers: reward while training"
    )
    lengths = _series(paths, COMPLETION_LENGTH)
    if lengths[0]:
        other = axes.twinx()
        other.plot(*lengths, color="tab:orange", alpha=0.6, label="completion length")
        other.set(ylabel="tokens per completion")
        figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(paths.picture, dpi=120)
    return paths.picture


def _series(paths: DemoPaths, name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in directory.metrics(paths.run(GRPO)) if name in row]
    return [float(row["step"]) for row in rows], [float(row[name]) for row in rows]


def what_next(paths: DemoPaths) -> str:
    """Return commands to copy: to look around, and to tear down."""
    ptctl = own_command()
    kubectl = "" if shutil.which("kubectl") else "      # kubectl is not installed here"
    return f"""\
TensorBoard  {paths.runs}
  pip install tensorboard && tensorboard --logdir {paths.runs}

What to type next (the demo's cluster keeps running)
  eval "$({ptctl} local env)"
  kubectl get ptj{kubectl}
  {ptctl} workload list
  {ptctl} workload describe {GRPO}
  {ptctl} workload samples {GRPO}              # what the model writes now
  {ptctl} workload samples {GRPO} --step 1     # and what it wrote at first
  {ptctl} workload metrics {GRPO} --plot completion_length
  {ptctl} chat {GRPO}                          # ask it: Ann has 3, 5 and 4 apples. How many?
  {ptctl} serve {GRPO}                         # for any client of OpenAI's API
  {ptctl} workload get {GRPO} -o yaml          # the job: a template for your own

How to tear down
  {ptctl} local down                # stops the cluster; `{ptctl} local up` brings it back
  {ptctl} local reset               # stops it and deletes everything in it
  rm -r {paths.folder}"""


def own_command() -> str:
    """Return how this program is called here: `ptctl` where that is on the PATH, else its file."""
    if shutil.which("ptctl"):
        return "ptctl"
    own = Path(sys.argv[0])
    return _short(own) if own.name == "ptctl" else f"{_short(Path(sys.executable))} -m ptctl"


def _short(path: Path) -> str:
    """Return the relative path where that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
