"""Apply the decision for one JobSet: the thin shell of the JobSet controller."""

from ptkube.client import AlreadyExists, ApiError, Kube, NotFound
from ptkube.events import EventRecorder
from ptkube.informer import Informer
from ptkube.resources import JOBS, JOBSETS, Manifest, Resource
from ptkube.timestamps import timestamp
from ptkube.watch import Key, key_of
from ptkube.workqueue import WorkQueue
from ptlocal import jobset_names
from ptlocal.controllers.jobset.jobset_decision import Decision, decide


class JobSetController:
    """Reconciles JobSets."""

    def __init__(self, kube: Kube, jobsets: Informer, jobs: Informer, services: Informer) -> None:
        self.queue: WorkQueue[Key] = WorkQueue("jobset-controller", lambda key, _: self.reconcile(key))
        self._kube = kube
        self._jobsets = jobsets
        self._jobs = jobs
        self._services = services
        self._events = EventRecorder(kube, "jobset-controller")
        jobsets.listen(lambda _, jobset: self.queue.add(key_of(jobset)))
        jobs.listen(self._owner_changed)
        services.listen(self._owner_changed)

    def reconcile(self, key: Key) -> float | None:
        """Apply the decision for one JobSet; return the seconds until the next look, or None."""
        namespace, name = key
        jobset = self._jobsets.get(namespace, name)
        if jobset is None:
            return None
        jobs = self._jobs.owned_by(jobset["metadata"]["uid"], namespace)
        subdomain = ((jobset["spec"].get("network") or {}).get("subdomain")) or name
        has_service = self._services.get(namespace, subdomain) is not None
        decision = decide(jobset, jobs, has_service=has_service, now=timestamp())
        self._apply(jobset, decision)
        return decision.again_s

    def _apply(self, jobset: Manifest, decision: Decision) -> None:
        for job in decision.delete_jobs:
            self._delete(JOBS, job)
        if decision.create_service:
            self._create(self._services, decision.create_service, jobset, "HeadlessServiceCreationFailed")
        for job in decision.create_jobs:
            self._create(self._jobs, job, jobset, "JobCreationFailed")
        for job in decision.suspend_jobs:
            self._patch_job(job, {"spec": {"suspend": True}})
        for job, template in decision.resume_jobs:
            self._resume(job, template)
        if decision.status is not None:
            body = {**jobset, "status": decision.status}
            self._jobsets.record(self._kube.replace_status(JOBSETS, body))
            for event in decision.events:
                self._events.record(jobset, event.kind, event.reason, event.message)
        if decision.delete_jobset:
            self._delete(JOBSETS, jobset)

    def _create(self, informer: Informer, body: Manifest, jobset: Manifest, reason: str) -> None:
        try:
            informer.record(self._kube.create(informer.resource, body))
        except AlreadyExists:
            return  # ours, created just now, or somebody else's: the next event decides
        except ApiError as error:
            self._events.record(jobset, "Warning", reason, f"{body['metadata']['name']}: {error.message}")
            raise

    def _resume(self, job: Manifest, template: Manifest) -> None:
        """Resume a Job with the scheduling fields that Kueue may have changed while the JobSet was suspended.

        The API server lets a Job's template change only if the Job never started, hence the reset of startTime.
        """
        if (job.get("status") or {}).get("startTime"):
            meta = job["metadata"]
            patch = {"status": {"startTime": None}}
            job = self._kube.patch(JOBS, meta["name"], meta["namespace"], patch, subresource="status")
            self._jobs.record(job)
        self._patch_job(job, {"spec": {"suspend": False, "template": _scheduling_fields(job, template)}})

    def _patch_job(self, job: Manifest, patch: Manifest) -> None:
        meta = job["metadata"]
        self._jobs.record(self._kube.patch(JOBS, meta["name"], meta["namespace"], patch))

    def _delete(self, resource: Resource, item: Manifest) -> None:
        """Delete a Job in the foreground: the next attempt's Job has the same name and must wait for the old pods."""
        meta = item["metadata"]
        try:
            self._kube.delete(resource, meta["name"], meta["namespace"], propagation="Foreground", uid=meta["uid"])
        except NotFound:
            return

    def _owner_changed(self, _: str, item: Manifest) -> None:
        meta = item["metadata"]
        for owner in meta.get("ownerReferences") or []:
            if owner["kind"] == JOBSETS.kind and owner["apiVersion"] == JOBSETS.api_version:
                self.queue.add((meta["namespace"], owner["name"]))


def _scheduling_fields(job: Manifest, template: Manifest) -> Manifest:
    """Return what a queueing system may have set in the JobSet's template; the child Job's own stamps stay."""
    meta, spec = template.get("metadata") or {}, template["spec"]
    merged: Manifest = {
        "metadata": {
            kind: {k: v for k, v in (meta.get(kind) or {}).items() if not k.startswith(jobset_names.NAME.split("/")[0])}
            for kind in ("labels", "annotations")
        },
        "spec": {"nodeSelector": spec.get("nodeSelector") or {}},
    }
    old = job["spec"]["template"]["spec"]
    for kind in ("tolerations", "schedulingGates"):
        if spec.get(kind):
            old_entries = old.get(kind) or []
            merged["spec"][kind] = old_entries + [entry for entry in spec[kind] if entry not in old_entries]
    return merged
