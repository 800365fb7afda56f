"""Learning curves: small tasks that a small model learns on a laptop, each with a bar that every seed must reach.

    python benchmarks/learning/run.py arithmetic                     # every trial, seeds 0, 1 and 2
    python benchmarks/learning/run.py arithmetic --trials gspo --seeds 0
    python benchmarks/learning/run.py all --record                   # and write results.json, docs/results.md, pictures
    python benchmarks/learning/run.py --page                         # write the page and pictures again

Exits 1, and says which, where a trial misses its bar or does not end. What is finished in `--out` is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import book
import page
from task import Task
from tasks import TASKS
from trial import Outcome, TrialFailed, perform


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = _options(arguments)
    if options.page:
        page.write(book.load(), TASKS)
        return 0
    done: dict[tuple[str, str, int], Outcome] = {}
    failed: list[str] = []
    for seed in options.seeds:
        for task in _chosen(options.task):
            for trial in task.trials:
                if options.trials and trial.name not in options.trials:
                    continue
                try:
                    outcomes = perform(TASKS, task.name, trial, seed, options.out.resolve())
                except TrialFailed as error:
                    failed.append(str(error))
                    continue
                for outcome in outcomes:
                    if (outcome.task, outcome.trial, outcome.seed) not in done:
                        done[outcome.task, outcome.trial, outcome.seed] = outcome
                        print(said(outcome, TASKS), flush=True)
    if options.record:
        page.write(book.enter(done.values()), TASKS)
    missed = [said(outcome, TASKS) for outcome in done.values() if missed_by(outcome, TASKS)]
    for line in (*failed, *missed):
        print(line, file=sys.stderr)
    return 1 if failed or missed else 0


def missed_by(outcome: Outcome, tasks: dict[str, Task]) -> list[str]:
    """What the outcome's bar wanted and it did not reach."""
    return tasks[outcome.task].trial(outcome.trial).bar.missed(outcome.before, outcome.after)


def said(outcome: Outcome, tasks: dict[str, Task]) -> str:
    """An outcome in a line."""
    metric = tasks[outcome.task].trial(outcome.trial).bar.metric
    missed = missed_by(outcome, tasks)
    return (
        f"{outcome.task}/{outcome.trial}, seed {outcome.seed}: {metric} {outcome.before:.3f} -> {outcome.after:.3f} in "
        f"{outcome.steps} steps, {outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} CPU-s: "
        + (f"missed its bar: {'; '.join(missed)}" if missed else "reached its bar")
    )


def _chosen(name: str) -> Iterable[Task]:
    return TASKS.values() if name == "all" else [TASKS[name]]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=["all", *TASKS])
    names = sorted({trial.name for task in TASKS.values() for trial in task.trials})
    parser.add_argument("--trials", "--algorithm", nargs="+", choices=names, metavar="TRIAL", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--out", type=Path, default=Path("learning-output"), help="where data, runs and logs go")
    parser.add_argument("--record", action="store_true", help="write results.json, docs/results.md and the pictures")
    parser.add_argument("--page", action="store_true", help="only write docs/results.md and pictures from results.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
