"""Repeat a published result, and judge it by a rule that is written down before the run.

    start NAME [--seeds 1 2 3] [--set output.uri=gs://…]     a job for each seed, in the cluster of the kubeconfig
    start NAME --here                                        one after the other on this machine, without a cluster
    start NAME --here --one-gpu                              as above, on one GPU of 80 GB or more (an H100 or H200)
    judge NAME RUN [RUN…]                                    names of jobs, or run directories

The rule. Held-out answers are compared twice. Before training: a mean that differs from the published one by more than
`START_POINTS` means another prompt or another way to read answers, and the ends cannot be compared. After training: the
result is repeated if the mean of the seeds lies within two standard errors of the published figure. A share p of n
answers has the standard error √(p(1 − p) / n); that of the difference adds the published run's and ours, of which the
seeds are averaged.
"""

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "manifests" / "reference-runs"
START_POINTS = 2.0
METRIC = "eval/reward"
"""With one reward of 0 or 1 its mean is the share of right answers."""
REPEATED, WORSE, NOT_COMPARABLE = 0, 1, 3


@dataclass(frozen=True)
class Published:
    """A result of others, in percent. rows: held-out problems; one_gpu: `PATH=VALUE` of what differs on one GPU."""

    source: str
    rows: int
    before: float
    after: float
    one_gpu: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of a repetition: the exit code, and a sentence."""

    code: int
    text: str


def published(name: str) -> Published:
    """Return the published figures of a reference run. Raises KeyError for another name."""
    figures = yaml.safe_load((FOLDER / "published.yaml").read_text(encoding="utf-8"))[name]
    return Published(one_gpu=tuple(figures.pop("oneGpu")), **figures)


def judge(reference: Published, runs: list[tuple[float, float]]) -> Verdict:
    """Judge a repetition by the rule above. runs: percent before and after training, a pair for each seed."""
    before, after = (fmean(each) for each in zip(*runs, strict=True))
    if abs(before - reference.before) > START_POINTS:
        return Verdict(
            NOT_COMPARABLE,
            f"not comparable: {before:.1f} % before training, published {reference.before} (accepted: within "
            f"{START_POINTS:g} points); prompts or answers are read differently",
        )
    band = 2 * math.hypot(_error(reference.after, reference.rows), _error(after, reference.rows * len(runs)))
    figures = f"{before:.1f} -> {after:.1f} %, published {reference.before} -> {reference.after} ± {band:.1f}"
    if after < reference.after - band:
        return Verdict(WORSE, f"worse: {figures}")
    return Verdict(REPEATED, f"{'better' if after > reference.after + band else 'repeated'}: {figures}")


def _error(percent: float, rows: int) -> float:
    """Return the standard error of a share, in points."""
    return math.sqrt(percent * (100 - percent) / rows)


def evaluations(run: str) -> tuple[float, float]:
    """Return the first and the last held-out score of a job or run directory, in percent."""
    done = subprocess.run([*_PTCTL, "workload", "metrics", run, "-o", "json"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    scores: list[dict[str, Any]] = [row for line in done.stdout.splitlines() if METRIC in (row := json.loads(line))]
    if len(scores) < 2:
        raise SystemExit(f"{run}: {len(scores)} evaluations with {METRIC}; accepted: one before training and one after")
    return 100 * float(scores[0][METRIC]), 100 * float(scores[-1][METRIC])


def start(name: str, seeds: list[int], changes: list[str], is_here: bool) -> int:
    """Create a job for each seed, or train them here one after the other; return the first failure's exit code."""
    for seed in seeds:
        verb = ("train",) if is_here else ("workload", "create")
        own = (f"metadata.name={name}-s{seed}", f"training.seed={seed}", *changes)
        command = [
            *_PTCTL,
            *verb,
            "-f",
            str(FOLDER / f"{name}.yaml"),
            *(word for each in own for word in ("--set", each)),
        ]
        if code := subprocess.run(command).returncode:
            return code
    return 0


_PTCTL = (sys.executable, "-m", "ptctl")


def main() -> int:
    """Run one of the two commands."""
    names = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "published")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    starting, judging = commands.add_parser("start"), commands.add_parser("judge")
    for each in (starting, judging):
        each.add_argument("name", choices=names)
    starting.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    starting.add_argument("--set", dest="changes", action="append", default=[], metavar="PATH=VALUE")
    starting.add_argument("--here", action="store_true", help="train on this machine, without a cluster")
    starting.add_argument("--one-gpu", action="store_true", help="on one GPU of 80 GB or more, such as an H100 or H200")
    judging.add_argument("runs", nargs="+", metavar="RUN", help="a job's name or a run directory")
    given = parser.parse_args()
    if given.command == "start":
        chips = published(given.name).one_gpu if given.one_gpu else ()
        return start(given.name, given.seeds, [*chips, *given.changes], given.here)
    runs = [evaluations(run) for run in given.runs]
    for run, (before, after) in zip(given.runs, runs, strict=True):
        print(f"{run}: {before:.1f} -> {after:.1f} %")
    verdict = judge(published(given.name), runs)
    print(verdict.text)
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
