"""Files that are too large for a job, written where its pods read them, once for each content."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from posttrain.errors import Error, translated
from ptapi.run_directory import PACKED


def uri(place: str) -> str:
    """Return a URI for a directory of this machine; a URI stays."""
    return place if "://" in place else f"file://{Path(place).expanduser().absolute()}"


def store(output: str, parts: Sequence[bytes | memoryview], suffix: str) -> str:
    """Write the parts to a file below `output`, unless it is there, and return its URI. Raises Error."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    name = f"{PACKED}/{digest.hexdigest()}{suffix}"
    if output.startswith("gs://"):
        from ptctl.runs.storage import bucket

        with translated():
            bucket.write_once(f"{output}/{name}", parts)
    else:
        _write_once(Path(output.removeprefix("file://"), name), parts)
    return f"{output.rstrip('/')}/{name}"


def _write_once(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    if path.exists():
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            file.writelines(parts)
        scratch.replace(path)
    except OSError as error:
        raise Error(
            f"{path}: what is too large for a job cannot be written: {error.strerror or error}",
            'output="gs://…", or pass the path of a file that the pods see',
        ) from error
