"""Draw the demo's tasks: a live view on a terminal, a line every few seconds elsewhere. Never silent.

A separate thread draws, so that the demo itself is straight-line code that may block.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ptctl.demo.task_list import State, Task, TaskList, clock_text
from ptctl.runs.plot import sparkline
from ptctl.ui.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

_DRAW_INTERVAL_S = 0.25
_LINE_INTERVAL_S = 3.0
_MARKS: dict[State, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "running": (">", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "stopped": ("-", "yellow"),
}


class View(Protocol):
    """How the tasks are shown; `draw` is called several times a second."""

    def draw(self, task_list: TaskList) -> None:
        """Draw the current state."""

    def close(self, task_list: TaskList) -> None:
        """Draw the final state and stop."""


class PlainView:
    """For pipes, logs and dumb terminals: a line when a task starts or ends, and every few seconds in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: dict[str, State] = {}
        self._last_line_at = 0.0

    def draw(self, task_list: TaskList) -> None:
        """Print the tasks whose state has changed, and the running one every few seconds."""
        for name, task in list(task_list.tasks.items()):
            if self._states.get(name, "waiting") != task.state:
                self._states[name] = task.state
                self._print_line(task_list, task)
        running = task_list.current
        if running is not None and task_list.elapsed - self._last_line_at >= _LINE_INTERVAL_S:
            self._print_line(task_list, running)

    def close(self, task_list: TaskList) -> None:
        """Print the final state."""
        self.draw(task_list)

    def _print_line(self, task_list: TaskList, task: Task) -> None:
        mark = f"{task.state}: " if task.state in ("done", "failed", "stopped") else ""
        self._console.say(f"[{clock_text(task_list.elapsed):>5}] {task.title}: {mark}{task.text}".rstrip(": "))
        self._last_line_at = task_list.elapsed


class LiveView:
    """For terminals: redraws in place."""

    def __init__(self, console: Console) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        self._rich = RichConsole(file=console.err, highlight=False)
        self._live = Live(
            console=self._rich, auto_refresh=False, transient=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def draw(self, task_list: TaskList) -> None:
        """Redraw the view."""
        self._live.update(render(task_list, self._rich.width), refresh=True)

    def close(self, task_list: TaskList) -> None:
        """Draw the final state and leave the live view."""
        self.draw(task_list)
        self._live.stop()


def render(task_list: TaskList, width: int) -> RenderableType:
    """Return the tasks as text: a line for each, and below the running one its progress and metric."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"posttrain demo  {clock_text(task_list.elapsed)}\n", style="bold")
    for task in list(task_list.tasks.values()):
        mark, style = _MARKS[task.state]
        spent = clock_text(task_list.spent(task)) if task.state != "waiting" else ""
        text.append(f" {mark} {task.title:<14}", style=style)
        text.append(f"{spent:>6}  ")
        if width < 60 and task.text:
            text.append("\n     ")
        text.append(f"{task.text}\n", style="" if task.state == "running" else "dim")
        if task.state == "running":
            _append_details(text, task, width)
    return text


def _append_details(text: Any, task: Task, width: int) -> None:
    room = max(10, min(60, width - 22))
    if task.share is not None:
        full = round(task.share * room)
        text.append("     " + "━" * full, style="cyan")
        text.append("━" * (room - full), style="dim")
        text.append(f" {task.share:4.0%}\n")
    if task.series:
        text.append(f"     {sparkline(task.series, room)}", style="green")
        text.append(f" {task.series_name} {task.series[-1]:.3g}\n")


class DemoDisplay:
    """Draws the tasks in the background, as a context manager."""

    def __init__(self, task_list: TaskList, console: Console) -> None:
        self._task_list = task_list
        self._view: View = LiveView(console) if console.is_live else PlainView(console)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo view", daemon=True)

    def __enter__(self) -> DemoDisplay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._task_list.end("stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        self._closing.set()
        self._thread.join()
        self._view.close(self._task_list)

    def _run(self) -> None:
        while not self._closing.wait(_DRAW_INTERVAL_S):
            self._view.draw(self._task_list)
