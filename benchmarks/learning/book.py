"""The book of outcomes: `results.json`, one entry per task, trial and seed; a trial done again replaces its entry."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from trial import Outcome

FILE = Path(__file__).with_name("results.json")


def load(path: Path = FILE) -> list[Outcome]:
    """All outcomes, in order; none where there is no book yet."""
    return [Outcome(**entry) for entry in json.loads(path.read_text())] if path.exists() else []


def enter(fresh: Iterable[Outcome], path: Path = FILE) -> list[Outcome]:
    """Writes these outcomes down; returns all."""
    entries = {_key(outcome): outcome for outcome in (*load(path), *fresh)}
    ordered = [entries[key] for key in sorted(entries)]
    # An outcome a line: a new one is one line of the diff.
    lines = ",\n".join(json.dumps(asdict(outcome)) for outcome in ordered)
    path.write_text(f"[\n{lines}\n]\n")
    return ordered


def _key(outcome: Outcome) -> tuple[str, str, int]:
    return outcome.task, outcome.trial, outcome.seed
