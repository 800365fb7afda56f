"""Backoff from a rate limit: honour the retry delay that the API names, or double the pause after each rejection.

Without this every job would ask again at every poll, and a limit per minute would stay exceeded.
"""

from collections.abc import Callable

from ptkube.backoff import pause_s
from ptoperator.capacity.cloud_errors import CloudFailure

MAX_BACKOFF_S = 60.0
"""Google's limits are per minute."""


class RateLimitBackoff:
    """Backoff of one kind of call. first_s: the first pause. When threads race, a pause may be slightly off."""

    def __init__(self, first_s: float, seconds: Callable[[], float]) -> None:
        self._first_s = first_s
        self._seconds = seconds
        self._refusals = 0
        self._until = 0.0
        self._why: CloudFailure | None = None

    @property
    def pausing(self) -> CloudFailure | None:
        """Return the rejection that forbids calls now, or None."""
        return self._why if self._why is not None and self._seconds() < self._until else None

    def refused(self, why: CloudFailure, retry_delay_s: float | None = None) -> None:
        """Record a rejection. retry_delay_s: the retry delay that the API names."""
        self._refusals += 1
        doubled = pause_s(self._refusals, self._first_s, MAX_BACKOFF_S)
        self._until = self._seconds() + max(doubled, retry_delay_s or 0.0)
        self._why = why

    def served(self) -> None:
        """Record a success."""
        self._refusals = 0
        self._why = None
