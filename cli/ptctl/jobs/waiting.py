"""Wait for a job to reach a state, and stop early when it no longer can."""

import time
from collections.abc import Iterator

from ptctl.errors import CliError, MissingError, TimedOutError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import JobView, view
from ptctl.ui.app import App, Target
from ptctl.ui.command_line.choices import GOAL_PHASES
from ptctl.ui.output import RESOURCE
from ptkube.client import Kube
from ptkube.resources import POSTTRAINJOBS
from ptkube.watch import changes


def wait_for(app: App, target: Target, name: str, goal: str, timeout_s: float | None) -> None:
    """Return when the goal is reached. Raises CliError when it no longer can be, TimedOutError after `timeout_s`."""
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
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    shown_phase = ""
    for state in states(kube, job, deadline):
        if state is None:
            if goal == "deleted":
                app.console.data(f"{RESOURCE}/{name} deleted")
                return
            raise MissingError(f"job {name!r} was deleted during the wait")
        job = state
        shown_phase = _show_phase(app, job, shown_phase)
        if is_reached(job, goal, name):
            app.console.data(f"{RESOURCE}/{name} {goal}")
            return
    raise TimedOutError(
        f"job {name!r} is not {goal} after {timeout_s:g} s: {_describe_state(job)}",
        f"`ptctl workload describe {name}{target.flags}` shows what is blocking it",
    )


def states(kube: Kube, job: JobView, until: float | None) -> Iterator[JobView | None]:
    """Yield the job now and after each change, by a watch, until a monotonic time; None when it is deleted."""
    selected = changes(kube, POSTTRAINJOBS, job.namespace, fields=f"metadata.name={job.name}", until=until)
    present = False
    for kind, item in selected:
        present = present or kind == "ADDED"
        if kind == "DELETED" or (kind == "SYNCED" and not present):
            yield None
        elif kind != "SYNCED":
            yield view(item)


def is_reached(job: JobView, goal: str, name: str) -> bool:
    """Return True if the job has reached the goal. Raises CliError if it never will."""
    if job.phase in GOAL_PHASES[goal]:
        return True
    if job.is_terminal and goal != "deleted":
        reason = f": {job.failure}" if job.failure else ""
        raise CliError(f"job {name!r} has {'failed' if job.phase == 'Failed' else 'succeeded'}{reason}")
    return False


def _show_phase(app: App, job: JobView, shown_phase: str) -> str:
    """Print the phase on a terminal whenever it changes."""
    if app.console.is_live and job.phase != shown_phase:
        app.console.say(_describe_state(job))
    return job.phase


def _describe_state(job: JobView) -> str:
    step = f", step {job.progress}" if job.progress else ""
    return f"{job.phase}{step}"
