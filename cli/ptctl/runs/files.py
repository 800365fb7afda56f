"""A run directory read from here: metrics and samples that the trainer has written so far.

Only `file://`: what is in a bucket is read with the tool that the error names. A last line that is being written
is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptctl.errors import CliError, MissingError

Row = dict[str, Any]


def local_path(run_uri: str, wanted: str) -> Path:
    """The directory on this machine. Raises CliError for a bucket, with the command that reads it."""
    if run_uri.startswith("file://"):
        return Path(run_uri.removeprefix("file://"))
    raise CliError(f"{run_uri} is not on this machine", f"gcloud storage cat {run_uri}/{wanted}")


def rows(path: Path) -> Iterator[Row]:
    """The objects of a JSONL file; none if it does not exist yet."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def metrics(run: Path) -> list[Row]:
    """A row for each step, oldest first; a step that was repeated after a restart counts once, the later one."""
    by_step = {int(row["step"]): row for row in rows(run / "metrics.jsonl") if isinstance(row.get("step"), int)}
    return [by_step[step] for step in sorted(by_step)]


def sample_steps(run: Path) -> list[int]:
    """The steps that have samples, in order."""
    names = (path.stem.removeprefix("step-") for path in (run / "samples").glob("step-*.jsonl"))
    return sorted(int(name) for name in names if name.isdigit())


def newest_sample(run_uri: str) -> tuple[int, Row] | None:
    """One completion of the newest step that has any, the one with the highest reward; None for what is not here."""
    if not run_uri.startswith("file://"):
        return None
    run = local_path(run_uri, "samples")
    steps = sample_steps(run)
    found = list(rows(run / "samples" / f"step-{steps[-1]:08d}.jsonl")) if steps else []
    return (steps[-1], max(found, key=lambda row: float(row.get("reward") or 0.0))) if found else None


def samples(run: Path, step: int | None) -> tuple[int, list[Row]]:
    """The samples of a step (None: the newest). Raises MissingError, naming the steps there are."""
    steps = sample_steps(run)
    if not steps:
        raise MissingError(
            f"{run / 'samples'}: no samples yet", "only what samples (grpo, ppo, on-policy distill) writes them"
        )
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        known = ", ".join(map(str, steps if len(steps) <= 12 else [*steps[:6], "...", *steps[-6:]]))
        raise MissingError(f"no samples of step {chosen}; there are: {known}")
    return chosen, list(rows(run / "samples" / f"step-{chosen:08d}.jsonl"))
