"""Which replica of a service is called next: the one with the fewest calls, of those that answer.

One that did not answer is left out for a while; then it gets one call, and more once it has answered that. Where none
answers, the one that has been left out the longest is called: a service of one replica is simply tried again.
"""

import threading
import time
from collections.abc import Sequence

AWAY_S = 10.0
"""Seconds that a replica which did not answer is left out."""


class Replicas:
    """The replicas of one service, from any number of threads. urls: their addresses."""

    def __init__(self, urls: Sequence[str], away_s: float = AWAY_S) -> None:
        self.urls, self._away_s = list(urls), away_s
        self._open = [0] * len(urls)
        self._away_until = [0.0] * len(urls)
        self._lock = threading.Lock()

    def take(self, first: int = 0) -> int:
        """Return the replica to call, which has one call more until `release`. first: of equal ones, from here on."""
        with self._lock:
            now, count = time.monotonic(), len(self.urls)
            turns = sorted(range(count), key=lambda replica: (replica - first) % count)
            present = [replica for replica in turns if self._is_present(replica, now)]
            if present:
                chosen = min(present, key=self._open.__getitem__)
            else:
                chosen = min(turns, key=self._away_until.__getitem__)
            self._open[chosen] += 1
            return chosen

    def _is_present(self, replica: int, now: float) -> bool:
        """Return True if a replica may be called; one that was lost gets a single call, until it has answered."""
        away_until = self._away_until[replica]
        return away_until == 0.0 or (away_until <= now and self._open[replica] == 0)

    def release(self, replica: int) -> None:
        """Note that a call has ended."""
        with self._lock:
            self._open[replica] -= 1

    def lost(self, replica: int) -> bool:
        """Note that a replica did not answer; return True if it did before."""
        with self._lock:
            now = time.monotonic()
            was_present = self._away_until[replica] == 0.0
            self._away_until[replica] = now + self._away_s
            return was_present

    def answered(self, replica: int) -> bool:
        """Note that a replica answered; return True if it did not before."""
        with self._lock:
            was_away, self._away_until[replica] = self._away_until[replica] > 0.0, 0.0
            return was_away
