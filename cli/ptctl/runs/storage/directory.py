"""Read a run directory on this machine: the metrics and samples that the trainer has written so far.

Only `file://`: for a bucket the error names the tool that reads it. A last line that is still being written is
skipped.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptctl.errors import CliError, MissingError

Row = dict[str, Any]
_LARGEST = 1e300
"""Whole numbers beyond it are no floats."""
STAGES = {
    "loading": "loading the model",
    "compiling": "compiling",
    "restoring": "restoring a checkpoint",
    "evaluating": "measuring on held-out data",
    "saving": "saving a checkpoint",
    "exporting": "exporting the model",
}
"""The trainer's stages but training, for people."""


def local_path(run_uri: str, file_name: str) -> Path:
    """Return the run's directory on this machine. Raises CliError for a bucket, with the command that reads it."""
    if run_uri.startswith("file://"):
        return Path(run_uri.removeprefix("file://"))
    raise CliError(f"{run_uri} is not on this machine", f"gcloud storage cat {run_uri}/{file_name}")


def rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSONL file; nothing if it does not exist yet."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def progress(run: Path, since: float = 0.0) -> Row:
    """Return the progress document; empty before there is one that was written `since`, in seconds of the epoch."""
    path = run / "progress.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_mtime >= since else {}
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def metrics(run: Path) -> list[Row]:
    """Return a row for each step, oldest first; of a step repeated after a restart, the later row."""
    by_step = {int(row["step"]): row for row in rows(run / "metrics.jsonl") if isinstance(row.get("step"), int)}
    return [by_step[step] for step in sorted(by_step)]


def sample_steps(run: Path) -> list[int]:
    """Return the steps that have samples, in order."""
    names = (path.stem.removeprefix("step-") for path in (run / "samples").glob("step-*.jsonl"))
    return sorted(int(name) for name in names if name.isdecimal())


def newest_sample(run_uri: str) -> tuple[int, Row] | None:
    """Return the completion with the highest reward of the newest sampled step; None if there is none here."""
    if not run_uri.startswith("file://"):
        return None
    run = local_path(run_uri, "samples")
    steps = sample_steps(run)
    completions = list(rows(run / "samples" / f"step-{steps[-1]:08d}.jsonl")) if steps else []
    return (steps[-1], max(completions, key=_reward)) if completions else None


def _reward(row: Row) -> float:
    value = row.get("reward")
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else 0.0


def samples(run: Path, step: int | None) -> tuple[int, list[Row]]:
    """Return the samples of a step (None: the newest). Raises MissingError with the steps that exist."""
    steps = sample_steps(run)
    if not steps:
        raise MissingError(
            f"{run / 'samples'}: no samples yet",
            "only algorithms that sample (grpo, ppo, on-policy distill) write them",
        )
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        available = ", ".join(map(str, steps if len(steps) <= 12 else [*steps[:6], "...", *steps[-6:]]))
        raise MissingError(f"no samples of step {chosen}; available: {available}")
    return chosen, list(rows(run / "samples" / f"step-{chosen:08d}.jsonl"))
