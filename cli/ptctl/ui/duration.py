"""Parse and format durations: `2h30m` in, kubectl's short ages out."""

import re
from datetime import datetime

from ptkube import timestamps

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `90s`, `1.5h`, `2h30m`. Raises ValueError with what is accepted."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration; accepted: 90, 90s, 15m, 2h30m, 1d")
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text))


def short(seconds: float) -> str:
    """Format seconds with at most two units, as kubectl prints ages: 45s, 3m20s, 45m, 5h20m, 3d4h, 40d."""
    s = max(0, int(seconds))
    if s < 120:
        return f"{s}s"
    if s < 600:
        return _two_units(s, 60, "m", 1, "s")
    if s < 3 * 3600:
        return f"{s // 60}m"
    if s < 8 * 3600:
        return _two_units(s, 3600, "h", 60, "m")
    if s < 48 * 3600:
        return f"{s // 3600}h"
    return _two_units(s, 86400, "d", 3600, "h") if s < 8 * 86400 else f"{s // 86400}d"


def _two_units(seconds: int, big: int, big_name: str, small: int, small_name: str) -> str:
    count, rest = divmod(seconds, big)
    part = rest // small
    return f"{count}{big_name}" + (f"{part}{small_name}" if part else "")


def age(timestamp: str, now: datetime) -> str:
    """Return how long ago an RFC 3339 time was; empty for no time."""
    moment = timestamps.from_text(timestamp)
    return short((now - moment).total_seconds()) if moment else ""
