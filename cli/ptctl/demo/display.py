"""Drawing the board: a live view on a terminal, a line every few seconds elsewhere. Never silent.

A thread of its own draws, so that the demo itself is straight-line code that may block.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ptctl.demo.task_list import Board, State, Task, clock_text
from ptctl.runs.plot import sparkline
from ptctl.ui.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

_DRAW_EVERY_S = 0.25
_SAY_EVERY_S = 3.0
_MARKS: dict[State, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "running": (">", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "stopped": ("-", "yellow"),
}


class Painter(Protocol):
    """How the board is drawn; `draw` is called several times a second."""

    def draw(self, board: Board) -> None: ...

    def close(self, board: Board) -> None: ...


class Lines:
    """For pipes, logs and dumb terminals: a line when a task begins or ends, and every few seconds between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: dict[str, State] = {}
        self._said_at = 0.0

    def draw(self, board: Board) -> None:
        for name, task in list(board.tasks.items()):
            if self._states.get(name, "waiting") != task.state:
                self._states[name] = task.state
                self._say(board, task)
        task_now = board.current
        if task_now is not None and board.elapsed - self._said_at >= _SAY_EVERY_S:
            self._say(board, task_now)

    def close(self, board: Board) -> None:
        self.draw(board)

    def _say(self, board: Board, task: Task) -> None:
        mark = f"{task.state}: " if task.state in ("done", "failed", "stopped") else ""
        self._console.say(f"[{clock_text(board.elapsed):>5}] {task.title}: {mark}{task.text}".rstrip(": "))
        self._said_at = board.elapsed


class LiveView:
    """For terminals."""

    def __init__(self, console: Console) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        self._rich = RichConsole(file=console.err, highlight=False)
        self._live = Live(
            console=self._rich, auto_refresh=False, transient=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def draw(self, board: Board) -> None:
        self._live.update(render(board, self._rich.width), refresh=True)

    def close(self, board: Board) -> None:
        self.draw(board)
        self._live.stop()


def render(board: Board, width: int) -> RenderableType:
    """The board as text: a line for each task, and below it what it measures."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"posttrain demo  {clock_text(board.elapsed)}\n", style="bold")
    for task in list(board.tasks.values()):
        mark, style = _MARKS[task.state]
        spent = clock_text(board.spent(task)) if task.state != "waiting" else ""
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


class Show:
    """Draws the board until it is closed."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._painter: Painter = LiveView(console) if console.is_live else Lines(console)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo view", daemon=True)

    def __enter__(self) -> Show:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._board.end("stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        self._closing.set()
        self._thread.join()
        self._painter.close(self._board)

    def _run(self) -> None:
        while not self._closing.wait(_DRAW_EVERY_S):
            self._painter.draw(self._board)
