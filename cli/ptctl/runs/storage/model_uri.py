"""Where the model of a job lies, for the verbs that load one: a job in the cluster, a run directory, or a model."""

from __future__ import annotations

from pathlib import Path

from ptapi.run_directory import CHECKPOINTS
from ptctl.errors import InputError, MissingError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import view
from ptctl.runs.storage.local_run import is_directory
from ptctl.ui.app import App, Target

_WITHOUT_STEPS = ("hf://", "random://")


def of(app: App, target: Target, name: str, step: int | None = None) -> str:
    """Return the URI or path that the trainer loads; of a run, the checkpoint of a step where one is wanted."""
    if step is not None and name.startswith(_WITHOUT_STEPS):
        raise InputError(f"--step {step}: {name} has no checkpoints; accepted: with a job or a run directory")
    place = name if "://" in name or is_directory(name) else _run(app, target, name)
    if step is None:
        return place
    run = place if "://" in place else f"file://{Path(place).expanduser().absolute()}"
    return f"{run.rstrip('/')}/{CHECKPOINTS}/{step}"


def _run(app: App, target: Target, name: str) -> str:
    """Return the run directory of a job in the cluster. Raises MissingError where this machine does not see it."""
    try:
        uri = view(fetch(app.connect(target), target, name)).run_uri
    except MissingError as error:
        if Path(name).is_dir():
            raise MissingError(error.message, f"the directory of that name is ./{name}") from error
        raise
    if uri.startswith("file://") and not Path(uri.removeprefix("file://")).is_dir():
        raise MissingError(
            f"job {name!r}: its run directory {uri} is not on this machine",
            "the job has not started, or writes to a volume; a run on gs:// can be read from here",
        )
    return uri
