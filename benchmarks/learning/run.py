"""Learning curves: small tasks that a small model learns on a laptop, each with a bar that every seed must reach.

    python benchmarks/learning/run.py arithmetic                     # every trial, seeds 0, 1 and 2
    python benchmarks/learning/run.py arithmetic --trials gspo --seeds 0
    python benchmarks/learning/run.py all --record                   # and write results.json, docs/results.md, pictures
    python benchmarks/learning/run.py --page                         # write the page and pictures again

What a trial needs is run before it. What is finished in `--out` is not run again; Ctrl-C loses the trial that runs
alone. Outcomes are printed to stdout; where it stands, and at the end what missed its bar or failed, to stderr. Exits
0 where every trial reached its bar, 1 where one did not, 2 for wrong arguments, 130 after Ctrl-C.
"""

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import book
import page
from task import Place, Task, Trial, in_order
from tasks import TASKS
from trial import Outcome, TrialFailed, is_done, perform, progress

Key = tuple[str, str]
"""Task and trial."""
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = _options(arguments)
    if options.page:
        page.write(book.load(), TASKS)
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    seeds = list(dict.fromkeys(options.seeds))
    keys = in_order(TASKS, _wanted(options))
    root = options.out.resolve()
    done: list[Outcome] = []
    failed: list[str] = []
    try:
        for number, seed in enumerate(seeds):
            _perform_all(keys, seed, (number * len(keys), len(seeds) * len(keys)), root, done, failed)
    except KeyboardInterrupt:
        print(f"\ninterrupted after {len(done)} of {len(seeds) * len(keys)} trials", file=sys.stderr)
        print("hint: the same command keeps what is finished and goes on from there", file=sys.stderr)
        return INTERRUPTED
    if options.record:
        page.write(book.enter(done), TASKS)
    return _verdict(done, failed, root)


def _perform_all(
    keys: list[Key], seed: int, counted: tuple[int, int], root: Path, done: list[Outcome], failed: list[str]
) -> None:
    """One seed of these trials, in order; one whose need failed is not tried. counted: trials before these, and all."""
    lost: set[Key] = set()
    for number, (task, name) in enumerate(keys, start=counted[0] + 1):
        trial = TASKS[task].trial(name)
        if missing := [f"{of}/{need}" for of, need in trial.needed if (of, need) in lost]:
            lost.add((task, name))
            failed.append(f"{task}/{name}, seed {seed}: not run, as {', '.join(missing)} failed")
            continue
        position = f"[{number}/{counted[1]}]"
        screen = _Screen(f"{position} {task}/{name}, seed {seed}")
        if not (is_old := is_done(trial, Place(root, task, seed))):
            screen.begin()
        try:
            outcome = perform(TASKS[task], trial, seed, root, screen.show)
        except TrialFailed as error:
            lost.add((task, name))
            failed.append(str(error))
            screen.clear()
            print(f"{position} {error}", file=sys.stderr, flush=True)
            continue
        screen.clear()
        done.append(outcome)
        print(f"{position} {summary(outcome, TASKS)}{' (run before)' if is_old else ''}", flush=True)


class _Screen:
    """Where a trial stands: on a terminal in its last line, again and again; else one line when it begins."""

    def __init__(self, name: str) -> None:
        self._name, self._began, self._is_terminal = name, time.monotonic(), sys.stderr.isatty()

    def begin(self) -> None:
        if not self._is_terminal:
            print(f"{self._name}: begins", file=sys.stderr, flush=True)

    def show(self, trial: Trial, place: Place) -> None:
        if self._is_terminal:
            at = progress(trial, place)
            words = f"step {at[0]} of {at[1]}" if at else "starting"
            self.clear()
            print(f"{self._name}: {words}, {time.monotonic() - self._began:.0f} s", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _verdict(done: list[Outcome], failed: list[str], root: Path) -> int:
    """Says what all came to; returns the exit code."""
    missed = [summary(outcome, TASKS) for outcome in done if missed_by(outcome, TASKS)]
    counts = [f"{len(done) - len(missed)} of {len(done) + len(failed)} trials reached their bar"]
    counts += [f"{len(missed)} missed it"] if missed else []
    counts += [f"{len(failed)} failed"] if failed else []
    print(f"{'FAILED' if missed or failed else 'PASSED'}: {', '.join(counts)}; jobs, logs and runs: {root}")
    for line in (*failed, *missed):
        print(line, file=sys.stderr)
    return 1 if failed or missed else 0


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def missed_by(outcome: Outcome, tasks: dict[str, Task]) -> list[str]:
    """What the outcome's bar wanted and it did not reach."""
    return tasks[outcome.task].trial(outcome.trial).bar.missed(outcome.before, outcome.after)


def summary(outcome: Outcome, tasks: dict[str, Task]) -> str:
    """An outcome in a line."""
    metric = " and ".join(tasks[outcome.task].trial(outcome.trial).bar.metrics)
    missed = missed_by(outcome, tasks)
    return (
        f"{outcome.task}/{outcome.trial}, seed {outcome.seed}: {metric} {outcome.before:.3f} -> {outcome.after:.3f} in "
        f"{outcome.steps} steps, {outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} CPU-s: "
        + (f"missed its bar: {'; '.join(missed)}" if missed else "reached its bar")
    )


def _wanted(options: argparse.Namespace) -> list[Key]:
    tasks = list(TASKS.values()) if options.task == "all" else [TASKS[options.task]]
    return [
        (task.name, trial.name)
        for task in tasks
        for trial in task.trials
        if not options.trials or trial.name in options.trials
    ]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=["all", *TASKS])
    names = sorted({trial.name for task in TASKS.values() for trial in task.trials})
    parser.add_argument("--trials", "--algorithm", nargs="+", choices=names, metavar="TRIAL", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", type=_seed, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--out", type=Path, default=Path("learning-output"), help="where data, runs and logs go")
    parser.add_argument("--record", action="store_true", help="write results.json, docs/results.md and the pictures")
    parser.add_argument("--page", action="store_true", help="only write docs/results.md and pictures from results.json")
    options = parser.parse_args(arguments)
    for name in options.trials or []:
        if options.task != "all" and name not in (has := [trial.name for trial in TASKS[options.task].trials]):
            parser.error(f"{options.task} has no trial {name!r} (choose from {', '.join(has)})")
    return options


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: whole numbers from 0, with spaces between: 3 4 7")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
