"""Apply the decision for one Job: the thin shell of the Job controller."""

from ptkube.client import ApiError, Conflict, Kube, NotFound
from ptkube.events import EventRecorder
from ptkube.informer import Informer
from ptkube.resources import JOBS, PODS, Manifest
from ptkube.timestamps import timestamp
from ptkube.watch import Key, key_of
from ptkube.workqueue import WorkQueue
from ptlocal.controllers.job.job_decision import Decision, decide
from ptlocal.controllers.job.job_pods import build_pod, is_tracked, without_finalizer


class JobController:
    """Reconciles Jobs."""

    def __init__(self, kube: Kube, jobs: Informer, pods: Informer) -> None:
        self.queue: WorkQueue[Key] = WorkQueue("job-controller", lambda key, _: self.reconcile(key))
        self._kube = kube
        self._jobs = jobs
        self._pods = pods
        self._events = EventRecorder(kube, "job-controller")
        jobs.listen(lambda _, job: self.queue.add(key_of(job)))
        pods.listen(self._pod_changed)

    def reconcile(self, key: Key) -> float | None:
        """Apply the decision for one Job; return the seconds until the next look, or None."""
        namespace, name = key
        job = self._jobs.get(namespace, name)
        self._release_orphans(namespace, name, job)
        if job is None or job["spec"].get("managedBy", _US) != _US:
            return None
        pods = self._pods.owned_by(job["metadata"]["uid"], namespace)
        pods.sort(key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]))
        decision = decide(job, pods, timestamp())
        self._apply(job, decision)
        return decision.again_s

    def _apply(self, job: Manifest, decision: Decision) -> None:
        if decision.status is not None:
            # the status goes first: a pod is released only after its end is recorded
            self._jobs.record(self._kube.replace_status(JOBS, {**job, "status": decision.status}))
        for pod in decision.release:
            self._release(pod)
        for pod in decision.delete:
            self._delete_pod(job, pod)
        for index in decision.create:
            self._create_pod(job, index)
        for kind, reason, message in decision.events:
            self._events.record(job, kind, reason, message)
        if decision.delete_job:
            self._delete_job(job)

    def _create_pod(self, job: Manifest, index: int | None) -> None:
        try:
            pod = self._kube.create(PODS, build_pod(job, index))
        except ApiError as error:
            self._events.record(job, "Warning", "FailedCreate", f"Error creating: {error.message}")
            raise
        self._pods.record(pod)
        self._events.record(job, "Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")

    def _release(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        try:
            self._pods.record(self._kube.patch(PODS, meta["name"], meta["namespace"], without_finalizer(pod)))
        except NotFound:
            return
        except Conflict:
            fresh = self._kube.get(PODS, meta["name"], meta["namespace"])
            if fresh["metadata"]["uid"] == meta["uid"] and is_tracked(fresh):
                self._kube.patch(PODS, meta["name"], meta["namespace"], without_finalizer(fresh))

    def _delete_pod(self, job: Manifest, pod: Manifest) -> None:
        meta = pod["metadata"]
        try:
            self._kube.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            return
        self._events.record(job, "Normal", "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    def _delete_job(self, job: Manifest) -> None:
        meta = job["metadata"]
        try:
            self._kube.delete(JOBS, meta["name"], meta["namespace"], propagation="Foreground", uid=meta["uid"])
        except NotFound:
            return

    def _release_orphans(self, namespace: str, name: str, job: Manifest | None) -> None:
        """Remove our finalizer from pods whose Job is gone."""
        uid = job["metadata"]["uid"] if job else None
        for pod in self._pods.items(namespace):
            owner = _owning_job(pod)
            if owner and owner["name"] == name and owner["uid"] != uid and is_tracked(pod):
                self._release(pod)

    def _pod_changed(self, _: str, pod: Manifest) -> None:
        owner = _owning_job(pod)
        if owner:
            self.queue.add((pod["metadata"]["namespace"], owner["name"]))


_US = "kubernetes.io/job-controller"


def _owning_job(pod: Manifest) -> Manifest | None:
    for owner in pod["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner["kind"] == JOBS.kind and owner["apiVersion"] == JOBS.api_version:
            return dict(owner)
    return None
