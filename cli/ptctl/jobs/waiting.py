"""Waiting for a job: what each goal means, when it has become impossible, and what is said meanwhile."""

from __future__ import annotations

import time

from ptctl.errors import CliError, MissingError, TimedOutError
from ptctl.jobs.lookup import fetch, namespace_of
from ptctl.jobs.view import JobView, view
from ptctl.ui.app import App, Target
from ptctl.ui.choices import GOAL_PHASES
from ptctl.ui.output import RESOURCE
from ptkube.resources import POSTTRAINJOBS
from ptkube.watch import changes


def wait_for(app: App, target: Target, name: str, goal: str, timeout_s: float | None) -> None:
    """Return when the goal is reached; raise CliError when it cannot be, TimedOutError when it was not in time."""
    kube = app.connect(target)
    try:
        job = view(fetch(kube, target, name))
    except MissingError:
        if goal != "deleted":
            raise
        app.console.data(f"{RESOURCE}/{name} deleted")
        return
    if is_reached(job, goal, name):
        app.console.data(f"{RESOURCE}/{name} {goal}")
        return
    until = None if timeout_s is None else time.monotonic() + timeout_s
    said = ""
    for kind, item in changes(
        kube, POSTTRAINJOBS, namespace_of(kube, target), fields=f"metadata.name={name}", until=until
    ):
        if kind == "SYNCED":
            continue
        job = view(item)
        if kind == "DELETED":
            if goal == "deleted":
                app.console.data(f"{RESOURCE}/{name} deleted")
                return
            raise MissingError(f"job {name!r} was deleted while it was waited for")
        said = _say(app, job, said)
        if is_reached(job, goal, name):
            app.console.data(f"{RESOURCE}/{name} {goal}")
            return
    raise TimedOutError(
        f"job {name!r} is not {goal} after {timeout_s:g} s: {_state(job)}",
        f"`ptctl workload describe {name}{target.flags}` shows what it waits for",
    )


def is_reached(job: JobView, goal: str, name: str) -> bool:
    """Whether it is so. Raises CliError when it will never be."""
    if job.phase in GOAL_PHASES[goal]:
        return True
    if job.is_terminal and goal != "deleted":
        reason = f": {job.failure}" if job.failure else ""
        raise CliError(f"job {name!r} has {'failed' if job.phase == 'Failed' else 'succeeded'}{reason}")
    return False


def _say(app: App, job: JobView, said: str) -> str:
    """The phase, whenever it changes, on a terminal."""
    if app.console.is_live and job.phase != said:
        app.console.say(_state(job))
    return job.phase


def _state(job: JobView) -> str:
    step = f", step {job.progress}" if job.progress else ""
    return f"{job.phase}{step}"
