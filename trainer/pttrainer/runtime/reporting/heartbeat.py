"""A heartbeat of each process in the run directory: an observer sees which process is behind.

Only runs of several processes write it; for one, `progress.json` is enough. A write that hangs is not waited for, and
no second one starts meanwhile.
"""

import socket
import threading
import time
from datetime import UTC, datetime

from ptapi import run_directory
from pttrainer.errors import StorageError
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting.progress import Beat

EVERY_S = 30.0


class Heartbeats:
    """Rewrites one file periodically. `update` never blocks and never raises."""

    def __init__(self, place: Place, process: int, every_s: float = EVERY_S) -> None:
        self._place, self._process, self._every_s = place, process, every_s
        self._last_write = float("-inf")
        self._writer: threading.Thread | None = None

    def update(self, beat: Beat) -> None:
        """Write what this process is doing, if it is time and the previous write has finished."""
        now = time.monotonic()
        if now - self._last_write < self._every_s or (self._writer is not None and self._writer.is_alive()):
            return
        self._last_write = now
        self._writer = threading.Thread(target=self._write, args=(beat,), name="heartbeat", daemon=True)
        self._writer.start()

    def _write(self, beat: Beat) -> None:
        document = run_directory.Heartbeat(
            process=self._process,
            host=socket.gethostname(),
            attempt=beat.attempt,
            stage=beat.stage,
            step=beat.step,
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        try:
            self._place.write(
                run_directory.heartbeat_file(self._process), document.model_dump_json(by_alias=True).encode()
            )
        except (OSError, StorageError):
            return  # the next one may get through; a run is not ended by a sign of life
