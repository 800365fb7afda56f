"""Where the demo keeps its files, and what it calls its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SFT = "demo-sft"
GRPO = "demo-grpo"
NAMESPACE = "default"
LABEL = "posttrain.dev/demo"
"""On the demo's jobs: those, and no others, are replaced when it runs again."""


@dataclass(frozen=True)
class Place:
    """The demo's directory."""

    folder: Path

    @property
    def train(self) -> Path:
        return self.folder / "data" / "train.jsonl"

    @property
    def held_out(self) -> Path:
        return self.folder / "data" / "eval.jsonl"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def lock(self) -> Path:
        """Held while a demo runs here."""
        return self.folder / ".lock"

    @property
    def picture(self) -> Path:
        return self.folder / "reward.png"

    def run(self, job: str) -> Path:
        """The run directory of a job."""
        return self.runs / job
