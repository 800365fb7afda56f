"""Weights & Biases: one run of wandb's own client, which sends in a process of its own."""

from collections.abc import Mapping
from typing import Any

from ptapi.spec.tracking import Wandb
from pttrainer.runtime.reporting.experiment_trackers.tracked_run import TrackedRun


def start(spec: Wandb, run: TrackedRun) -> "WandbRun":
    """Start or continue the run."""
    import wandb  # half a second, and only where it is asked for

    # Metrics alone: no console, no code, no figures of the machine, nothing on the terminal.
    server = {"base_url": spec.base_url} if spec.base_url else {}
    settings = wandb.Settings(
        silent=True, console="off", disable_code=True, disable_git=True, x_disable_stats=True, **server
    )
    return WandbRun(
        wandb.init(
            project=spec.project,
            entity=spec.entity,
            group=spec.group,
            tags=spec.tags,
            mode=spec.mode,
            id=run.id_of("wandb")[0],
            name=run.name,
            dir=run.folder,
            config=run.settings(),
            resume="allow",
            settings=settings,
        )
    )


class WandbRun:
    """A run of Weights & Biases."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Report a step."""
        self._run.log({**values, "time": time_s}, step=step)

    def finish(self, *, is_failed: bool) -> None:
        """Send what is left."""
        self._run.finish(exit_code=int(is_failed))
