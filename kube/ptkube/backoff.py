"""The one backoff: a pause that doubles with each failure, up to a longest one."""


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the pause after so many failures in a row: nothing after none, `first_s` after one, then twice as long."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 30)) if failures > 0 else 0.0
