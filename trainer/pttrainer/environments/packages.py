"""Python packages of a job's environment, installed by pip into a directory of their own, once.

The directory is named by the packages and Python's version and stands in the cache, so restarts find it. It comes last
on the path of the processes that run the environment: what the trainer itself has is not replaced. pip's own variables
(`PIP_INDEX_URL`, `PIP_FIND_LINKS`, …) apply: set them in `spec.env`.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pttrainer.errors import UserCodeError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.model_files import Note

FIELD = "spec.environment.packages"
LIMIT_S = 900.0
SHOWN_CHARACTERS = 400


def installed(packages: Sequence[str], note: Note) -> str | None:
    """Return the directory with these packages, installing them unless it is there; None without any.

    Raises UserCodeError.
    """
    if not packages:
        return None
    named = "\n".join([sys.version, *sorted(packages)])
    target = processes.cache_directory() / "packages" / hashlib.sha256(named.encode()).hexdigest()[:16]
    if not target.is_dir():
        note(f"installing {', '.join(packages)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".installing-"))
        try:
            _install(packages, scratch)
            _publish(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return str(target)


def _install(packages: Sequence[str], target: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    try:
        done = subprocess.run(
            [*command, "--target", str(target), *packages], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserCodeError(f"{FIELD}: {', '.join(packages)}: not installed within {LIMIT_S:g} s") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        why = " ".join(" ".join(errors).split())[:SHOWN_CHARACTERS]
        raise UserCodeError(
            f"{FIELD}: {', '.join(packages)}: pip cannot install them: {why}; accepted: packages that the pod's index "
            "has; hint: PIP_INDEX_URL in spec.env names another index"
        )


def _publish(scratch: Path, target: Path) -> None:
    """Move what is installed into place; another process may have been faster."""
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():
            raise
