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


def exception(files: Sequence[Path], failure: JobFailed) -> BaseException:
    """Return what the first process that failed raised; the failure itself if none left an exception."""
    for file in files:
        try:
            outcome = pickled.load(file)
        except Exception:  # a class that does not exist here; the failure has its text
            continue
        if "traceback" in outcome:
            error: BaseException = outcome.get("error", failure)
            error.__cause__ = RemoteTraceback(outcome["traceback"])
            return error
    return failure
