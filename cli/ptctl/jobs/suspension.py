"""Set `spec.runPolicy.suspend`, for `suspend` and `resume`."""

from ptctl.errors import CliError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import JobView, view
from ptctl.ui.app import App, Target
from ptctl.ui.output import RESOURCE
from ptkube.client import Kube
from ptkube.resources import POSTTRAINJOBS


def set_suspend(app: App, target: Target, name: str, *, suspend: bool) -> None:
    """Suspend or resume the job and report the result; a job already in that state is no error."""
    kube = app.connect(target)
    state = "suspended" if suspend else "resumed"
    if not write_suspend(kube, view(fetch(kube, target, name)), suspend=suspend):
        app.console.data(f"{RESOURCE}/{name} {state} (unchanged)")
        return
    app.console.data(f"{RESOURCE}/{name} {state}")
    if suspend:
        app.console.say("the trainer saves a checkpoint and stops; to wait for that:")
        app.console.say(f"  ptctl workload wait {name} --for suspended{target.flags}")


def write_suspend(kube: Kube, job: JobView, *, suspend: bool) -> bool:
    """Return True if the job was not in that state and now is asked to be. Raises CliError for one that has ended."""
    if job.is_terminal:
        raise CliError(f"job {job.name!r} has ended ({job.phase}): it can be neither suspended nor resumed")
    if job.deleting:
        raise CliError(f"job {job.name!r} is being deleted")
    if job.suspended == suspend:
        return False
    kube.patch(POSTTRAINJOBS, job.name, job.namespace, {"spec": {"runPolicy": {"suspend": suspend}}})
    return True
