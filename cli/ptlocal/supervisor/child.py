"""A child process that the supervisor keeps alive: restarted with growing delays when it dies."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ptlocal import processes
from ptlocal.supervisor.state import Component

log = logging.getLogger(__name__)

_DELAYS_S = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
_STEADY_S = 60.0  # after running this long, the next failure counts as the first


class Child:
    """Start and restart it only from the supervisor's main thread: the process dies with the thread that created it."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log_file: Path) -> None:
        self.name = name
        self._argv = argv
        self._env = env
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._failures = 0
        self._started = 0.0

    def start(self, on_death: Callable[[Child], None]) -> None:
        """Start the process; `on_death` is called from another thread when it dies."""
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        with open(self._log_file, "ab") as output:
            process = processes.start(
                self._argv, self._env, self._log_file.parent, output, self._log_file.with_suffix(".start-error")
            )
        self._process = process
        threading.Thread(target=self._wait_for_end, args=(process, on_death), name=self.name, daemon=True).start()

    def _wait_for_end(self, process: subprocess.Popen[bytes], on_death: Callable[[Child], None]) -> None:
        process.wait()
        if process is self._process:
            on_death(self)

    @property
    def is_alive(self) -> bool:
        """Return True if the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs or before it starts."""
        return self._process.returncode if self._process else None

    def next_restart_delay_s(self) -> float:
        """Count a failure and return the delay before the next start, in seconds."""
        if time.monotonic() - self._started > _STEADY_S:
            self._failures = 0
        self._failures += 1
        self._restarts += 1
        return _DELAYS_S[min(self._failures, len(_DELAYS_S)) - 1]

    def stop(self, grace_s: float) -> None:
        """Stop the process: SIGTERM, then SIGKILL after the grace period."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        processes.signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return
        log.warning("%s did not stop within %.0f s; killing it", self.name, grace_s)
        processes.signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def component(self) -> Component:
        """Return the process's state for the state file."""
        process = self._process if self.is_alive else None
        return Component(self.name, process.pid if process else None, self._restarts)

    def last_log_lines(self, lines: int = 5) -> str:
        """Return the last lines of the process's log."""
        try:
            return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""
