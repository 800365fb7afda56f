"""What the function of a job returned or raised: files of its run directory, one for each process that has one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.errors import Error, JobFailed, RemoteTraceback
from ptapi import pickled


def value(files: Sequence[Path], name: str) -> Any:
    """Return what process 0 of a job that succeeded returned. Raises Error if it cannot be loaded here."""
    if not files:
        raise Error(
            f"job {name!r} returned nothing", "it is no job of posttrain.remote, or its run directory was cleared"
        )
    try:
        return pickled.load(files[0])["value"]
    except pickled.NotLoadable as error:
        raise Error(f"what job {name!r} returned cannot be loaded: {error}") from error


def raise_error(files: Sequence[Path], failure: JobFailed) -> None:
    """Raise what the first process that failed raised; return if none left an exception that can be loaded."""
    for file in files:
        try:
            outcome = pickled.load(file)
        except Exception:  # a class that does not exist here; the failure has its text
            continue
        if "error" in outcome:
            raise outcome["error"] from RemoteTraceback(outcome["traceback"])
        if "traceback" in outcome:
            raise failure from RemoteTraceback(outcome["traceback"])
