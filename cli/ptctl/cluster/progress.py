"""One line that says what Google is doing, since when, and about how long it still takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from ptctl.cluster.next_step import Action, Observed
from ptctl.ui.console import Console
from ptctl.ui.duration import short

USUAL_CLUSTER_S = 8 * 60.0
USUAL_POOL_S = 5 * 60.0
"""How long Google usually takes, from XPK's and Google's own documentation; a large slice takes longer."""
_REPEAT_S = 60.0
"""In a file or pipe, where no line can be overwritten, the same line comes at most this often."""


class Progress:
    """On a terminal one line that changes, elsewhere a line a minute."""

    def __init__(self, console: Console, seconds: Callable[[], float]) -> None:
        self._console = console
        self._seconds = seconds
        self._since: dict[str, float] = {}
        self._written: float | None = None
        self._is_open = False

    def begin(self, action: Action) -> None:
        """Say what is started."""
        self.end()
        self._console.say(f"{action.verb} {'node pool' if action.kind == 'pool' else action.kind} {action.name}")
        self._since[action.name] = self._seconds()

    def show(self, waits: Sequence[str], observed: Observed) -> None:
        """Say what is waited for."""
        if not waits:
            return
        now = self._seconds()
        line = line_of(waits, {name: now - self._since.setdefault(name, now) for name in waits}, observed)
        if self._console.is_live:
            columns = shutil.get_terminal_size().columns  # a line that wraps cannot be overwritten
            self._console.err.write(f"\r\x1b[K{line[: columns - 1]}")
            self._console.err.flush()
            self._is_open = True
        elif self._written is None or now - self._written >= _REPEAT_S:
            self._written = now
            self._console.say(line)

    def end(self) -> None:
        """Leave the changing line."""
        if self._is_open:
            self._console.err.write("\r\x1b[K")
            self._console.err.flush()
            self._is_open = False


def line_of(waits: Sequence[str], elapsed_s: dict[str, float], observed: Observed) -> str:
    """Return the line: since when, how long it may still take, and, last because it may be cut, what is waited for."""
    cluster = observed.cluster
    is_cluster = cluster is None or cluster.state not in ("RUNNING", "RECONCILING")
    what = f"cluster {waits[0]}" if is_cluster else f"{len(waits)} node pool{'s' if len(waits) > 1 else ''}: {waits[0]}"
    more = f" and {len(waits) - 1} more" if len(waits) > 1 else ""
    longest = max(elapsed_s.values())
    left = (USUAL_CLUSTER_S if is_cluster else USUAL_POOL_S) - longest
    ending = f"about {short(left)} left" if left > 0 else "longer than usual"
    return f"waiting {short(longest)}, {ending}: {what}{more}"
