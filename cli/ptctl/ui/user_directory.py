"""Where ptctl keeps what it knows between two commands: one directory of the user's, which may be deleted."""

import os
from pathlib import Path

DIRECTORY_ENV = "PTCTL_HOME"


def user_directory() -> Path:
    """Return `PTCTL_HOME`, else ~/.posttrain/ptctl. Nothing here creates it."""
    configured = os.environ.get(DIRECTORY_ENV)
    return Path(configured).expanduser() if configured else Path.home() / ".posttrain" / "ptctl"
