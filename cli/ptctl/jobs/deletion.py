"""Delete jobs, and wait until they and their pods are gone."""

import time
from contextlib import suppress

from ptctl.errors import TimedOutError
from ptctl.jobs.lookup import Filter, fetch, namespace_of
from ptctl.jobs.view import JobView, view
from ptctl.ui import name_cache
from ptctl.ui.app import App, Target
from ptctl.ui.output import RESOURCE
from ptkube.client import Kube
from ptkube.errors import Conflict, NotFound
from ptkube.resources import POSTTRAINJOBS
from ptkube.watch import changes


def delete_jobs(app: App, target: Target, job_filter: Filter, wait_s: float | None) -> None:
    """Delete the matching jobs; with `wait_s`, return when they are gone or raise TimedOutError."""
    kube = app.connect(target)
    namespace = namespace_of(kube, target)
    if job_filter.names:
        jobs = [view(fetch(kube, target, name)) for name in job_filter.names]
    else:
        listed = (view(job) for job in kube.list(POSTTRAINJOBS, namespace, labels=job_filter.labels).items)
        jobs = [job for job in listed if job_filter.matches(job)]
    for job in jobs:
        _delete(app, kube, job)
    name_cache.discard(target, [job.name for job in jobs])
    if not jobs:
        app.console.say(f"no jobs found in namespace {namespace!r}")
    elif wait_s is not None:
        wait_until_deleted(kube, jobs, wait_s)


def _delete(app: App, kube: Kube, job: JobView) -> None:
    request_deletion(kube, job)
    app.console.data(f'{RESOURCE} "{job.name}" deleted')
    if job.run_uri:
        app.console.say(f"the run directory is kept: {job.run_uri}")


def request_deletion(kube: Kube, job: JobView) -> None:
    """Delete this job, not one that was made anew under its name; one that is gone is no error."""
    with suppress(NotFound, Conflict):  # Conflict: another uid
        kube.delete(POSTTRAINJOBS, job.name, job.namespace, uid=job.uid or None, propagation="Foreground")


def wait_until_deleted(kube: Kube, jobs: list[JobView], wait_s: float) -> None:
    """Return when none of these jobs exists any more. Raises TimedOutError."""
    remaining = {job.uid: job for job in jobs}
    deadline = time.monotonic() + wait_s
    for namespace in {job.namespace for job in jobs}:
        present: set[str] = set()
        for kind, item in changes(kube, POSTTRAINJOBS, namespace, until=deadline):
            if kind == "DELETED":
                remaining.pop(str(item["metadata"]["uid"]), None)
            elif kind == "SYNCED":
                for uid in [uid for uid, job in remaining.items() if job.namespace == namespace and uid not in present]:
                    remaining.pop(uid)
            else:
                present.add(str(item["metadata"]["uid"]))
            if kind != "ADDED" and not any(job.namespace == namespace for job in remaining.values()):
                break
    if remaining:
        names = ", ".join(job.name for job in remaining.values())
        hint = "`ptctl workload describe NAME` shows what is blocking it"
        raise TimedOutError(f"still not deleted after {wait_s:g} s: {names}", hint)
