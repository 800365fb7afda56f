"""Time as Kubernetes writes it: RFC 3339 in UTC, whole seconds."""

from datetime import UTC, datetime

_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
"""Seconds and name of a unit, and of the next smaller one."""


def utc_now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def timestamp() -> str:
    """Return the current time as the API writes it."""
    return to_text(utc_now())


def to_text(time: datetime) -> str:
    """Return a time as RFC 3339, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_micro_text(time: datetime) -> str:
    """Return a time as MicroTime, which Leases have: the API wants all six digits."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_text(text: str | None) -> datetime | None:
    """Parse a time; None for nothing, and for a text that is no time, because others wrote it."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def seconds_since(text: str | None, now: datetime) -> float | None:
    """Return the seconds from a written time to `now`, never negative; None if there is none."""
    time = from_text(text)
    return None if time is None else max(0.0, (now - time).total_seconds())


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two written times, negative if the second is earlier."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def duration(seconds: float) -> str:
    """Return `45s`, `12m30s`, `1h12m` or `2d3h`: two units at most, as a person reads it."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left}s"
    size, unit, smaller, small_unit = next(each for each in _UNITS if left >= each[0])
    rest = left % size // smaller
    return f"{left // size}{unit}{rest}{small_unit}" if rest else f"{left // size}{unit}"
