"""Programs that only sleep, each told from all others of the machine, those of other test runs included."""

import secrets
from pathlib import Path


def a_long_sleep() -> str:
    """A command line that no other test has."""
    return f"sleep {10**6 + secrets.randbelow(10**9)}"


def running(*lines: str) -> list[str]:
    """Those of these command lines that a process has."""
    return [line for folder in Path("/proc").glob("[0-9]*") if (line := _line(folder)) in lines]


def _line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""  # it has ended
