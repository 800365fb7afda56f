"""docs/results.md and its pictures, from the book of outcomes alone: pure text, so that a test can make it again."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import picture
from task import Task, Trial
from trial import Outcome

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "results.md"
SEEDS = 3
"""That every trial should have."""
PICTURES = "results"
"""Folder below `DOCS`: one picture per task."""

HEAD = """\
# What small models learn

Written by `benchmarks/learning` from its `results.json`; edit those. Small tasks for a laptop, each with a bar that
every seed must reach: `make learning` does all of them again, `make learning TASK=arithmetic SEEDS="3 4"` one with
other seeds. It ends with a line that says `PASSED` or `FAILED`, what missed its bar, and where every job, log and run
lies. A trial (a line of a table) is one `PostTrainJob`, run with `python -m pttrainer run`; the same seed gives the
same numbers. Models are random at first (`random://demo`: 0.36 M weights, `random://tiny`: 0.07 M), in float32 where
a task does not say otherwise.

The *bar* says how much a trial must solve after training, and how many points more than before; a *control* must stay
below its bar, since else the task would not show what it claims. In the pictures bars are dotted (a control's red),
thin lines are seeds, and a trial that others begin from is not drawn: its end is the others' step 0.

*Before* and *after* are the share of held-out problems that greedy completions solve, before the trial's first step and
after its last. ± is the standard deviation over seeds (n − 1). A seed decides the data, the weights and the samples.
*Clipped* is the share of trained tokens whose gradient the clip takes away, over all updates; the first update on a
batch never clips. Seconds are of the whole process: start, compilation, evaluations and export included.
"""


def write(outcomes: Sequence[Outcome], tasks: dict[str, Task]) -> None:
    """Page and pictures."""
    PAGE.write_text(text(outcomes, tasks))
    (DOCS / PICTURES).mkdir(exist_ok=True)
    for task in tasks.values():
        if shown := _of(outcomes, task):
            (DOCS / PICTURES / f"{task.name}.png").write_bytes(picture.draw(task, shown))


def text(outcomes: Sequence[Outcome], tasks: dict[str, Task]) -> str:
    """The page."""
    parts = [HEAD, _over_seeds(outcomes, tasks), *_unfinished(outcomes, tasks)]
    for task in tasks.values():
        if shown := _of(outcomes, task):
            parts += [f"## {task.title}\n", task.story.strip() + "\n", table(task, shown)]
            parts.append(f"![{task.title}]({PICTURES}/{task.name}.png)\n")
    return "\n".join([*parts, _machines(outcomes)])


def table(task: Task, outcomes: Sequence[Outcome]) -> str:
    """A line per trial of a task."""
    seeds = sorted({outcome.seed for outcome in outcomes})
    columns = ["trial", "steps", "before", *(f"seed {seed}" for seed in seeds), "after", "bar", "clipped", "CPU-s", "s"]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for trial in task.trials:
        if runs := [outcome for outcome in outcomes if outcome.trial == trial.name]:
            lines.append(_line(_cells(trial, runs, seeds)))
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds, n − 1; 0 of a single one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _cells(trial: Trial, runs: Sequence[Outcome], seeds: Iterable[int]) -> list[str]:
    after = {outcome.seed: outcome.after for outcome in runs}
    missed = {outcome.seed for outcome in runs if trial.bar.missed(outcome.before, outcome.after)}
    by_seed = [
        _percent(after[seed]) + (" (missed)" if seed in missed else "") if seed in after else "" for seed in seeds
    ]
    clipped = [outcome.clipped for outcome in runs if outcome.clipped is not None]
    return [
        trial.name,
        str(runs[0].steps),
        _mean([outcome.before for outcome in runs]),
        *by_seed,
        _mean(list(after.values())),
        trial.bar.words,
        _percent(statistics.mean(clipped)) if clipped else "",
        f"{statistics.mean(outcome.cpu_seconds for outcome in runs):.0f}",
        f"{statistics.mean(outcome.seconds for outcome in runs):.0f}",
    ]


def _over_seeds(outcomes: Sequence[Outcome], tasks: dict[str, Task]) -> str:
    """How much the seed decides, and whether every seed reached its bar."""
    named: dict[str, list[float]] = {}
    missed = []
    for outcome in outcomes:
        name = f"{outcome.task}/{outcome.trial}"
        named.setdefault(name, []).append(outcome.after)
        if tasks[outcome.task].trial(outcome.trial).bar.missed(outcome.before, outcome.after):
            missed.append(f"{name} with seed {outcome.seed}")
    several = {name: spread(values) for name, values in named.items() if len(values) > 1}
    verdict = f"Missed: {', '.join(missed)}." if missed else "Every trial that was run reached its bar."
    if not several:
        return f"{verdict}\n"
    most, least = max(several, key=several.__getitem__), min(several, key=several.__getitem__)
    return (
        f"{verdict} The seed decides most in {most} (± {several[most] * 100:.1f} points over {len(named[most])} seeds) "
        f"and least in {least} (± {several[least] * 100:.1f}); the median over trials is "
        f"± {statistics.median(several.values()) * 100:.1f}. A difference between trials that is not well above that "
        "says nothing about which is better.\n"
    )


def _unfinished(outcomes: Sequence[Outcome], tasks: dict[str, Task]) -> list[str]:
    """What is not in the book, in words; nothing where each trial has its seeds."""
    done = Counter((outcome.task, outcome.trial) for outcome in outcomes)
    names = [(task.name, trial.name) for task in tasks.values() for trial in task.trials]
    never = [f"{task}/{trial}" for task, trial in names if not done[task, trial]]
    few = [f"{task}/{trial} ({done[task, trial]})" for task, trial in names if 0 < done[task, trial] < SEEDS]
    sentences = [
        f"Not run yet: {', '.join(never)}." if never else "",
        f"Fewer than {SEEDS} seeds: {', '.join(few)}." if few else "",
    ]
    return [f"{' '.join(filter(None, sentences))}\n"] if never or few else []


def _machines(outcomes: Sequence[Outcome]) -> str:
    machines = sorted({outcome.machine for outcome in outcomes})
    loads = [load for outcome in outcomes for load in outcome.load]
    seconds, cpu = sum(outcome.seconds for outcome in outcomes), sum(outcome.cpu_seconds for outcome in outcomes)
    return (
        "## Machine\n\n"
        f"{'; '.join(machines)}; JAX on CPU. All {len(outcomes)} runs together: {cpu / 60:.0f} CPU-minutes, "
        f"{seconds / 60:.0f} minutes. The machine did other work at the same time (load {min(loads):.0f} to "
        f"{max(loads):.0f}), so CPU seconds can be compared and seconds cannot.\n"
    )


def _of(outcomes: Sequence[Outcome], task: Task) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.task == task.name]


def _mean(values: Sequence[float]) -> str:
    deviation = f" ± {spread(values) * 100:.1f}" if len(values) > 1 else ""
    return f"{_percent(statistics.mean(values))}{deviation}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
