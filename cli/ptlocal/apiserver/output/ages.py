"""Times in the form of kubectl's tables."""

from datetime import UTC, datetime
from typing import Any


def parse_time(timestamp: Any) -> datetime | None:
    """Parse an RFC 3339 time; None if it is not one."""
    try:
        then = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return None
    return then if then.tzinfo is not None else then.replace(tzinfo=UTC)


def age(timestamp: Any) -> str:
    """Return the time since in kubectl's short form: 42s, 5m12s, 3h, 2d4h."""
    then = parse_time(timestamp)
    return "<unknown>" if then is None else duration((datetime.now(UTC) - then).total_seconds())


def duration(seconds: float) -> str:
    """Format seconds in kubectl's short form."""
    s = int(seconds)
    if s < -1:
        return "<invalid>"
    s = max(s, 0)
    if s < 120:
        return f"{s}s"
    minutes, hours, days = s // 60, s // 3600, s // 86400
    if minutes < 10:
        return f"{minutes}m{s % 60}s" if s % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return f"{days // 365}y{days % 365}d" if days % 365 else f"{days // 365}y"
    return f"{days // 365}y"
