"""The demo's files and job names."""

from dataclasses import dataclass
from pathlib import Path

SFT = "demo-sft"
GRPO = "demo-grpo"
NAMESPACE = "default"
LABEL = "posttrain.dev/demo"
"""Label of the demo's jobs: only jobs with it are replaced when the demo runs again."""


@dataclass(frozen=True)
class DemoPaths:
    """Paths in the demo's directory."""

    folder: Path

    @property
    def train(self) -> Path:
        """Return the training data's path."""
        return self.folder / "data" / "train.jsonl"

    @property
    def held_out(self) -> Path:
        """Return the held-out data's path."""
        return self.folder / "data" / "eval.jsonl"

    @property
    def runs(self) -> Path:
        """Return the directory of both runs."""
        return self.folder / "runs"

    @property
    def lock(self) -> Path:
        """Return the lock that a running demo holds."""
        return self.folder / ".lock"

    @property
    def picture(self) -> Path:
        """Return the path of the reward plot."""
        return self.folder / "reward.png"

    def run(self, job: str) -> Path:
        """Return the run directory of a job."""
        return self.runs / job
