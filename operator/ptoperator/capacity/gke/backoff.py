"""How often an API may be called that has had enough: as it says itself, or twice as long after each refusal.

Without this every job would ask again at every poll, and a limit per minute would never be met again.
"""

from __future__ import annotations

from collections.abc import Callable

from ptoperator.capacity.cloud_errors import Trouble

MAX_BACKOFF_S = 60.0
"""Google's limits are per minute."""


class Backoff:
    """Of one kind of call. first_s: the pause after the first refusal. Where threads race, a pause is a little off."""

    def __init__(self, first_s: float, seconds: Callable[[], float]) -> None:
        self._first_s = first_s
        self._seconds = seconds
        self._refusals = 0
        self._until = 0.0
        self._why: Trouble | None = None

    @property
    def pausing(self) -> Trouble | None:
        """The refusal because of which nothing may be called now."""
        return self._why if self._why is not None and self._seconds() < self._until else None

    def refused(self, why: Trouble, asked_s: float | None = None) -> None:
        """asked_s: how long the API wants to be left alone, where it says so."""
        doubled = min(MAX_BACKOFF_S, self._first_s * 2.0 ** min(self._refusals, 10))
        self._refusals += 1
        self._until = self._seconds() + max(doubled, asked_s or 0.0)
        self._why = why

    def served(self) -> None:
        self._refusals = 0
        self._why = None
