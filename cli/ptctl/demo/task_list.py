"""The demo's tasks, each with a state and a line of text. Pure; `display.py` draws them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

State = Literal["waiting", "running", "done", "failed", "stopped"]


@dataclass(frozen=True)
class Task:
    """One part of the demo. `share` is the fraction done; `series` becomes a sparkline."""

    title: str
    state: State = "waiting"
    text: str = ""
    share: float | None = None
    series: tuple[float, ...] = ()
    series_name: str = ""
    started: float = 0.0
    seconds: float = 0.0


@dataclass
class TaskList:
    """All tasks and the clock. The demo's thread writes it, the drawing thread reads; each change is one assignment."""

    tasks: dict[str, Task]
    clock: Callable[[], float] = time.monotonic
    began: float = field(default=0.0)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def start(self, name: str, text: str = "") -> None:
        """Mark the task as running."""
        self.tasks[name] = replace(self.tasks[name], state="running", text=text, started=self.clock())

    def update(
        self, name: str, text: str, share: float | None = None, series: Sequence[float] = (), series_name: str = ""
    ) -> None:
        """Set the running task's text, progress and series."""
        self.tasks[name] = replace(
            self.tasks[name], text=text, share=share, series=tuple(series), series_name=series_name
        )

    def finish(self, name: str, text: str) -> None:
        """Mark the task as done."""
        task = self.tasks[name]
        self.tasks[name] = replace(task, state="done", text=text, share=None, seconds=self.clock() - task.started)

    def end(self, state: State) -> None:
        """Mark the running task as failed or stopped."""
        for name, task in self.tasks.items():
            if task.state == "running":
                self.tasks[name] = replace(task, state=state, seconds=self.clock() - task.started)

    @property
    def current(self) -> Task | None:
        """Return the running task, if any."""
        return next((task for task in self.tasks.values() if task.state == "running"), None)

    @property
    def elapsed(self) -> float:
        """Return the seconds since the demo began."""
        return self.clock() - self.began

    def spent(self, task: Task) -> float:
        """Return the task's seconds so far."""
        return self.clock() - task.started if task.state == "running" else task.seconds


def clock_text(seconds: float) -> str:
    """Format seconds as `1:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
