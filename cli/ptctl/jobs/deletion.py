"""Deleting jobs, and waiting until they and their pods are gone."""

from __future__ import annotations

import time

from ptctl.errors import TimedOutError
from ptctl.jobs.lookup import Filter, fetch, namespace_of
from ptctl.jobs.view import JobView, view
from ptctl.ui.app import App, Target
from ptctl.ui.output import RESOURCE
from ptkube.client import Kube
from ptkube.errors import NotFound
from ptkube.resources import POSTTRAINJOBS
from ptkube.watch import changes


def delete_jobs(app: App, target: Target, wanted: Filter, wait_s: float | None) -> None:
    """Delete; with `wait_s`, return when they are gone, or raise TimedOutError."""
    kube = app.connect(target)
    namespace = namespace_of(kube, target)
    if wanted.names:
        jobs = [view(fetch(kube, target, name)) for name in wanted.names]
    else:
        listed = (view(job) for job in kube.list(POSTTRAINJOBS, namespace, labels=wanted.labels).items)
        jobs = [job for job in listed if wanted.matches(job)]
    for job in jobs:
        _delete(app, kube, job)
    if not jobs:
        app.console.say(f"no jobs found in namespace {namespace!r}")
    elif wait_s is not None:
        await_gone(kube, jobs, wait_s)


def _delete(app: App, kube: Kube, job: JobView) -> None:
    try:
        kube.delete(POSTTRAINJOBS, job.name, job.namespace, uid=job.uid or None, propagation="Foreground")
    except NotFound:
        pass  # somebody else was faster, and it is gone: as asked
    app.console.data(f'{RESOURCE} "{job.name}" deleted')
    if job.run_uri:
        app.console.say(f"its run directory stays: {job.run_uri}")


def await_gone(kube: Kube, jobs: list[JobView], wait_s: float) -> None:
    """Return when none of these objects exists any more."""
    left = {job.uid: job for job in jobs}
    until = time.monotonic() + wait_s
    for namespace in {job.namespace for job in jobs}:
        present: set[str] = set()
        for kind, item in changes(kube, POSTTRAINJOBS, namespace, until=until):
            if kind == "DELETED":
                left.pop(str(item["metadata"]["uid"]), None)
            elif kind == "SYNCED":
                for uid in [uid for uid, job in left.items() if job.namespace == namespace and uid not in present]:
                    left.pop(uid)
            else:
                present.add(str(item["metadata"]["uid"]))
            if kind != "ADDED" and not any(job.namespace == namespace for job in left.values()):
                break
    if left:
        names = ", ".join(job.name for job in left.values())
        hint = "`ptctl workload describe NAME` shows what it waits for"
        raise TimedOutError(f"not gone after {wait_s:g} s: {names}", hint)
