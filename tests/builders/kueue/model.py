"""What Kueue does with queued JobSets, in the small cluster in memory: quota, admission checks, eviction.

The rules it keeps are those of Kueue 0.19's workload and job controllers: a Workload per JobSet; quota is reserved in
the order of the queue; pods come when every admission check is Ready, bound by what the checks say; an eviction resets
the checks, suspends the JobSet, restores its templates and frees the quota after the last pod is gone.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from tests.builders.kueue.objects import Manifest, condition, local_queue, workload

from ptkube.resources import ADMISSION_CHECKS, JOBS, JOBSETS, LOCAL_QUEUES, WORKLOADS
from ptoperator.kube import labels

QUEUE, CLUSTER_QUEUE, CHECK = "team", "cluster-queue", "node-pools"
NO_QUOTA = "insufficient unused quota for google.com/tpu"

_SCHEDULING: tuple[tuple[str, type], ...] = (("nodeSelector", dict), ("tolerations", list))


@dataclass
class KueueModel:
    """One ClusterQueue of so many chips. api: `operator_world.Api`. checks: names of its admission checks. first: the
    JobSet that comes before all others."""

    api: Any
    chips: int
    namespace: str
    checks: tuple[str, ...] = (CHECK,)
    first: str = ""
    templates: dict[str, list[Manifest]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api.put(LOCAL_QUEUES, self._named(local_queue(QUEUE, self.namespace, CLUSTER_QUEUE)))
        check = {"metadata": {"name": CHECK}, "spec": {"controllerName": labels.POOLS_CHECK}}
        self.api.put(ADMISSION_CHECKS, self._named(check))
        other = {"metadata": {"name": "budget"}, "spec": {"controllerName": "example.com/budget"}}
        self.api.put(ADMISSION_CHECKS, self._named(other))

    def run(self) -> None:
        """Each of its controllers once."""
        for jobset in self._jobsets():
            self._follow(jobset)
        for each in sorted(self.api.kinds("Workload"), key=self._place):
            self._reserve(each)

    def evict(self, jobset: str, reason: str = "Preempted", message: str = "made room for another") -> None:
        """Take the quota back."""
        queued = self.of(jobset)
        if queued is None or not holds(queued, "QuotaReserved") or holds(queued, "Evicted"):
            return
        for check in queued["status"]["admissionChecks"]:
            check.update(state="Pending", message="Reset to Pending after eviction", podSetUpdates=[])
        _set(queued, condition("Evicted", True, reason, message))
        self.api.put(WORKLOADS, queued)

    def change(self, queued: Manifest) -> None:
        """Somebody changed a Workload."""
        self.api.put(WORKLOADS, queued)

    def of(self, jobset: str) -> Manifest | None:
        """The Workload of a JobSet."""
        owner = self.api.find(JOBSETS, jobset)
        uid = owner["metadata"]["uid"] if owner else ""
        items: list[Manifest] = self.api.kinds("Workload")
        return next((each for each in items if each["metadata"]["labels"][labels.KUEUE_JOB_UID] == uid), None)

    def has_quota(self, jobset: str) -> bool:
        queued = self.of(jobset)
        return queued is not None and holds(queued, "QuotaReserved") and not holds(queued, "Evicted")

    def used(self) -> int:
        """Chips of quota that are reserved."""
        return sum(_chips(each) for each in self.api.kinds("Workload") if holds(each, "QuotaReserved"))

    def _follow(self, jobset: Manifest) -> None:
        """Kueue's controller of JobSets."""
        name = jobset["metadata"]["name"]
        queued = self.of(name)
        if queued is None:
            if self._is_active(jobset):
                return
            self._make(jobset)
        elif any(
            each["type"] in ("Completed", "Failed") for each in (jobset.get("status") or {}).get("conditions", [])
        ):
            _set(queued, condition("QuotaReserved", False, "Finished", ""))
            self.api.put(WORKLOADS, queued)
        elif holds(queued, "Evicted"):
            self._stop(jobset)
            if holds(queued, "QuotaReserved") and not self._is_active(jobset):
                _set(queued, condition("QuotaReserved", False, "Pending", NO_QUOTA))
                _set(queued, condition("Admitted", False, "NoReservation", ""))
                self.api.put(WORKLOADS, queued)
        elif holds(queued, "QuotaReserved"):
            self._start(jobset, queued)
        elif not jobset["spec"]["suspend"]:
            self._stop(jobset)

    def _reserve(self, queued: Manifest) -> None:
        owner = queued["metadata"]["ownerReferences"][0]["name"]
        jobset = self.api.find(JOBSETS, owner)
        is_waiting = jobset is not None and jobset["spec"]["suspend"] and not holds(queued, "QuotaReserved")
        if not is_waiting or self.used() + _chips(queued) > self.chips or self._is_over(queued):
            return
        _set(queued, condition("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue"))
        _set(queued, condition("Evicted", False, "QuotaReserved", "Previously: evicted"))
        self.api.put(WORKLOADS, queued)

    def _start(self, jobset: Manifest, queued: Manifest) -> None:
        if any(each["state"] != "Ready" for each in queued["status"]["admissionChecks"]):
            return
        if not jobset["spec"]["suspend"]:
            return
        _set(queued, condition("Admitted", True, "Admitted", "The workload is admitted"))
        self.api.put(WORKLOADS, queued)
        self.templates[jobset["metadata"]["uid"]] = copy.deepcopy(jobset["spec"]["replicatedJobs"])
        updates = [
            update for check in queued["status"]["admissionChecks"] for update in check.get("podSetUpdates") or []
        ]
        for replicated in jobset["spec"]["replicatedJobs"]:
            pod = replicated["template"]["spec"]["template"]["spec"]
            for update in updates:
                if update["name"] == replicated["name"]:
                    _merge(pod, update)
            self._resume(jobset, replicated["name"], pod)
        jobset["spec"]["suspend"] = False
        self.api.put(JOBSETS, jobset)

    def _resume(self, jobset: Manifest, name: str, pod: Manifest) -> None:
        """As JobSet does: its child Job keeps the selectors and tolerations it has, and gets the template's too."""
        meta = jobset["metadata"]
        child = self.api.find(JOBS, f"{meta['name']}-{name}")
        if child is not None and child["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]:
            had = child["spec"]["template"]["spec"]
            pod["nodeSelector"] = {**had["nodeSelector"], **pod.get("nodeSelector", {})}
            kept = [each for each in had["tolerations"] if each not in pod.get("tolerations", [])]
            pod["tolerations"] = [*kept, *pod.get("tolerations", [])]
        made = {
            "metadata": {
                "name": f"{meta['name']}-{name}",
                "namespace": self.namespace,
                "uid": f"of-{meta['uid']}-{name}",
                "labels": {labels.JOBSET_NAME: meta["name"]},
                "ownerReferences": [{"kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}],
            },
            "spec": {"template": {"spec": copy.deepcopy({key: pod.get(key) or kind() for key, kind in _SCHEDULING})}},
        }
        self.api.put(JOBS, made)

    def _stop(self, jobset: Manifest) -> None:
        if jobset["spec"]["suspend"]:
            return
        uid = jobset["metadata"]["uid"]
        jobset["spec"].update(suspend=True, replicatedJobs=self.templates.pop(uid, jobset["spec"]["replicatedJobs"]))
        self.api.put(JOBSETS, jobset)

    def _make(self, jobset: Manifest) -> None:
        pending = [condition("QuotaReserved", False, "Pending", NO_QUOTA)]
        made = workload(jobset, QUEUE, conditions=pending, admissionChecks=[_pending(name) for name in self.checks])
        meta = jobset["metadata"]
        made["metadata"]["name"] = f"jobset-{meta['name']}-{meta['uid']}"
        made["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}]
        self.api.create(WORKLOADS, made)
        self.api.writes -= 1  # not the operator's
        self.api.log.pop()

    def _jobsets(self) -> list[Manifest]:
        items: list[Manifest] = self.api.kinds("JobSet")
        return [item for item in items if labels.KUEUE_QUEUE in item["metadata"]["labels"]]

    def _is_active(self, jobset: Manifest) -> bool:
        return any(
            each["metadata"]["ownerReferences"][0]["uid"] == jobset["metadata"]["uid"]
            and each["status"]["phase"] not in ("Succeeded", "Failed")
            for each in self.api.kinds("Pod")
        )

    def _is_over(self, queued: Manifest) -> bool:
        return any(each["reason"] == "Finished" for each in queued["status"]["conditions"])

    def _place(self, queued: Manifest) -> tuple[bool, int]:
        meta = queued["metadata"]
        return meta["ownerReferences"][0]["name"] != self.first, int(meta["uid"].split("-")[1])

    def _named(self, item: Manifest) -> Manifest:
        meta = {"namespace": self.namespace, "uid": f"of-{item['metadata']['name']}", **item["metadata"]}
        return {**item, "metadata": meta}


def holds(queued: Manifest, kind: str) -> bool:
    return any(each["type"] == kind and each["status"] == "True" for each in queued["status"].get("conditions") or [])


def _set(queued: Manifest, wanted: Manifest) -> None:
    others = [each for each in queued["status"].get("conditions") or [] if each["type"] != wanted["type"]]
    queued["status"]["conditions"] = [*others, wanted]


def _pending(name: str) -> Manifest:
    return {"name": name, "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def _chips(queued: Manifest) -> int:
    return sum(
        each["count"] * int((container["resources"].get("limits") or {}).get("google.com/tpu", 0))
        for each in queued["spec"]["podSets"]
        for container in each["template"]["spec"]["containers"]
    )


def _merge(pod_spec: Manifest, update: Manifest) -> None:
    """As Kueue does: keys are added, and a key that is there with another value is an error."""
    selector = pod_spec.setdefault("nodeSelector", {})
    for key, value in (update.get("nodeSelector") or {}).items():
        assert selector.setdefault(key, value) == value, f"conflict for nodeSelector {key}"
    assert len(update.get("tolerations") or []) <= 8, "more than an admission check may name"
    pod_spec["tolerations"] = [*pod_spec.get("tolerations", []), *(update.get("tolerations") or [])]
