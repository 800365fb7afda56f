"""Packages that a function's job asks for: installed by pip once, and kept in the bucket by what was asked for.

What is kept has no end: `einops` without a version stays at the one that was newest when it was first asked for.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pttrainer.errors import ConfigError
from pttrainer.runtime.io.place import Place

_PIP = ("-m", "pip", "install", "--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--target")
_SHOWN = 600


def make_importable(requirements: Sequence[str], place: Place, field: str) -> None:
    """Install the packages, or unpack them from `place`, and put them first on this Python's path.

    Raises ConfigError naming `field` if pip cannot install them.
    """
    if not requirements:
        return
    folder = Path(tempfile.mkdtemp(prefix="posttrain-packages-"))
    name = f"{_digest(requirements)}.tar"
    kept = place.read(name)
    if kept is None:
        _install(requirements, folder, field)
        _keep(folder, place, name)
    else:
        archive = folder / name
        archive.write_bytes(kept)
        _unpack(archive, folder)
    sys.path.insert(0, str(folder))
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else str(folder)


def _digest(requirements: Sequence[str]) -> str:
    """Return a digest of what is asked for and of what it is installed on; of a file's content, not of its name."""
    contents = [_content(requirement) for requirement in sorted(requirements)]
    machine = (*sys.version_info[:2], sys.platform, platform.machine())
    return hashlib.sha256(json.dumps([machine, contents]).encode()).hexdigest()


def _content(requirement: str) -> str:
    path = Path(requirement)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else requirement


def _install(requirements: Sequence[str], folder: Path, field: str) -> None:
    print(f"installing {', '.join(requirements)}", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *_PIP, str(folder), *requirements], capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"{field}: pip ended with {done.returncode}: {done.stderr.strip()[-_SHOWN:]}")


def _keep(folder: Path, place: Place, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="posttrain-packages-") as scratch:
        path = Path(scratch, name)
        with tarfile.open(path, "w") as archive:
            archive.add(folder, ".")
        place.upload(name, path)


def _unpack(path: Path, folder: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    path.unlink()
