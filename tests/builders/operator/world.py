"""A cluster in memory, small enough to run thousands of lives of a job in seconds.

`Api` keeps objects as an API server does (uid, resourceVersion, generation, conflicts, owner references). `World` plays
JobSet controller, Job controller, garbage collector and kubelet on it, one step at a time and from the manifests that
the operator really renders: the failure policies are evaluated, not assumed. Time is a number that tests move.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ptkube import timestamps
from ptkube.client import ListResult
from ptkube.errors import AlreadyExists, ApiError, Conflict, NotFound
from ptkube.resources import EVENTS, JOBS, JOBSETS, NODES, PODS, POSTTRAINJOBS, Manifest, Resource
from ptkube.watch_cache import LocalCopy
from ptoperator.capacity.cloud import Answer, Cloud, CloudAction, CloudProvider, Pool, PoolState, Reservation
from ptoperator.controller.reconciler import Reconciler
from ptoperator.failures.pod_creation import REASONS
from ptoperator.kube import labels
from ptoperator.kube.audited_client import Client
from ptoperator.observe.cache import JobCache, Key
from ptoperator.observe.observed_parts import Estimate
from ptoperator.observe.state import Observed
from ptoperator.observe.watch_caches import WATCHED, Copies, empty_copy, empty_refusals
from ptoperator.settings import Settings

NAMESPACE = "team-a"
HEARD = (*WATCHED, EVENTS)
"""The kinds of which a watch tells."""
CALLS: set[tuple[str, str]] = set()
"""Every verb and resource that an operator of these tests called."""
START = datetime(2026, 1, 1, tzinfo=UTC)
Ref = tuple[str, str, str]
Change = tuple[str, Manifest]
"""What a watch tells: the kind of change, and the object."""


def job_manifest(name: str = "llama", **spec: Any) -> Manifest:
    """Return a valid job; keywords replace parts of its spec."""
    base: Manifest = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": "file:///data/train.jsonl"}},
        "training": {"steps": 10, "batchSize": 8},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": "file:///runs"},
    }
    return {
        "apiVersion": "posttrain.dev/v1alpha1",
        "kind": "PostTrainJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**base, **spec},
    }


def copied(value: Any) -> Any:
    """Copy JSON deeply: `copy.deepcopy` took a third of a simulation's time."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


@dataclass
class Api:
    """The verbs that the operator uses, on a dict."""

    objects: dict[Ref, Manifest] = field(default_factory=dict)
    now: datetime = START
    writes: int = 0
    log: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    paths: dict[str, Manifest] = field(default_factory=dict)
    logs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    nodes: dict[str, Manifest] = field(default_factory=dict)
    """Nodes that are not simply well."""
    _version: int = 0
    _uid: int = 0

    def get(self, r: Resource, name: str, namespace: str | None = None) -> Manifest:
        """Return one object."""
        if r is NODES:
            return self.nodes.get(name, {"metadata": {"name": name}})
        return copied(self._there(r, namespace or NAMESPACE, name))

    def list(
        self, r: Resource, namespace: str | None = None, *, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        """Return the objects of a kind that match a label and a field selector."""
        wanted = dict(each.split("=", 1) for each in labels.split(",")) if labels else {}
        paths = [each.split("=", 1) for each in fields.split(",")] if fields else []
        items = [
            copied(item)
            for (kind, _, _), item in self.objects.items()
            if kind == r.kind
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
            and all(_field(item, path.split(".")) == value for path, value in paths)
        ]
        return ListResult(items, str(self._version))

    def create(self, r: Resource, body: Manifest) -> Manifest:
        """Create an object."""
        meta = body["metadata"]
        ref = (r.kind, meta.get("namespace", NAMESPACE), meta["name"])
        if ref in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f'{r.plural} "{meta["name"]}" already exists')
        item = copied(body)
        self._uid += 1
        item["metadata"].update(
            uid=f"uid-{self._uid}", generation=1, creationTimestamp=timestamps.to_text(self.now), namespace=ref[1]
        )
        return self._store(ref, item, "create")

    def apply(self, r: Resource, body: Manifest, *, field_manager: str) -> Manifest:
        """Create or replace an object by server-side apply."""
        assert field_manager
        ref = (r.kind, body["metadata"]["namespace"], body["metadata"]["name"])
        if ref not in self.objects:
            return self.create(r, body)
        item = {**self.objects[ref], **{k: v for k, v in body.items() if k != "metadata"}}
        return copied(item) if item == self.objects[ref] else self._store(ref, item, "apply")

    def patch(self, r: Resource, name: str, namespace: str | None, body: Manifest) -> Manifest:
        """Apply a merge patch."""
        ref = (r.kind, namespace or NAMESPACE, name)
        item = copied(self._there(r, namespace or NAMESPACE, name))
        wanted = body.get("metadata", {}).get("resourceVersion", item["metadata"]["resourceVersion"])
        if wanted != item["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", f"{name} was changed meanwhile")
        _merge(item, body)
        if "deletionTimestamp" in item["metadata"] and not item["metadata"].get("finalizers"):
            self._count(f"patch {r.kind} {name}")
            self.remove(ref)
            return item
        if item != self.objects[ref] and "spec" in body:
            item["metadata"]["generation"] += 1
        return self._store(ref, item, "patch")

    def delete(self, r: Resource, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object, or mark it if a finalizer or a running pod keeps it."""
        item = self._there(r, namespace or NAMESPACE, name)
        if uid is not None and item["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", f"{name}: the uid is {item['metadata']['uid']}")
        self._count(f"delete {r.kind} {name}")
        ref = (r.kind, namespace or NAMESPACE, name)
        is_alive = r is PODS and _phase(item) not in ("Succeeded", "Failed")
        if item["metadata"].get("finalizers") or is_alive:
            self.terminate(ref)
        else:
            self.remove(ref)

    def pod_logs(
        self, name: str, namespace: str, *, container: str | None, tail: int | None, timestamps: bool
    ) -> Iterator[str]:
        """Return the end of a container's log."""
        lines = self.logs.get((name, container or ""), [])[-(tail or 0) :]
        yield from lines if timestamps else (line.partition(" ")[2] for line in lines)

    def get_subresource(self, r: Resource, name: str, subresource: str, namespace: str | None = None) -> Manifest:
        """Return a subresource that a test has set."""
        path = r.path(namespace, name, subresource)
        if path not in self.paths:
            raise NotFound(404, "NotFound", f"{path} is not served")
        return copied(self.paths[path])

    def replace_status(self, r: Resource, body: Manifest) -> Manifest:
        """Replace the status of an object."""
        meta = body["metadata"]
        item = self._there(r, meta["namespace"], meta["name"])
        if meta["resourceVersion"] != item["metadata"]["resourceVersion"] or meta["uid"] != item["metadata"]["uid"]:
            raise Conflict(409, "Conflict", f"{meta['name']} was changed meanwhile")
        ref = (r.kind, meta["namespace"], meta["name"])
        return self._store(ref, {**item, "status": copied(body["status"])}, "status")

    def replace(self, r: Resource, body: Manifest) -> Manifest:
        """Replace an object."""
        meta = body["metadata"]
        item = self._there(r, meta["namespace"], meta["name"])
        if meta["resourceVersion"] != item["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", f"{meta['name']} was changed meanwhile")
        return self._store((r.kind, meta["namespace"], meta["name"]), copied(body), "replace")

    def put(self, r: Resource, item: Manifest) -> None:
        """Another controller's write."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[(r.kind, item["metadata"]["namespace"], item["metadata"]["name"])] = item
        self.changes.append(("MODIFIED", {"kind": r.kind, **copied(item)}))

    def remove(self, ref: Ref) -> None:
        """Remove an object and tell the watch."""
        item = self.objects.pop(ref)
        self.changes.append(("DELETED", {"kind": ref[0], **copied(item)}))

    def terminate(self, ref: Ref) -> None:
        """Mark an object; a pod stays until its grace is over, others until their finalizers are gone."""
        item = self.objects[ref]
        if "deletionTimestamp" not in item["metadata"]:
            item["metadata"]["deletionTimestamp"] = timestamps.to_text(self.now)
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            self.changes.append(("MODIFIED", {"kind": ref[0], **copied(item)}))

    def find(self, r: Resource, name: str) -> Manifest | None:
        """Return an object, or None."""
        return self.objects.get((r.kind, NAMESPACE, name))

    def kinds(self, kind: str) -> list[Manifest]:
        """Return all objects of a kind."""
        return [item for (each, _, _), item in self.objects.items() if each == kind]

    def _there(self, r: Resource, namespace: str, name: str) -> Manifest:
        try:
            return self.objects[(r.kind, namespace, name)]
        except KeyError:
            raise NotFound(404, "NotFound", f'{r.plural} "{name}" not found') from None

    def _store(self, ref: Ref, item: Manifest, verb: str) -> Manifest:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[ref] = item
        self._count(f"{verb} {ref[0]} {ref[2]}")
        self.changes.append(("ADDED" if verb == "create" else "MODIFIED", {"kind": ref[0], **copied(item)}))
        return copied(item)

    def _count(self, what: str) -> None:
        self.writes += 1
        self.log.append(what)


class OnePoolCloud:
    """A cloud with one pool that nobody holds."""

    def snapshot(self, uid: str = "") -> Cloud:
        """Return a snapshot."""
        return Cloud(pools=(Pool("p", PoolState.RUNNING, "shape", NAMESPACE, "uid-gone"),))

    def last(self) -> Cloud | None:
        """Return the latest snapshot."""
        return self.snapshot()

    def reservation(self, name: str, zone: str) -> Reservation | None:
        """Return no reservation."""
        return None

    def carry_out(self, action: CloudAction) -> Answer:
        """Carry out a change."""
        return Answer(action.pool, operation="delete")


@dataclass
class World:
    """The controllers of a cluster. Every method is one step that may happen at any time."""

    api: Api
    files: dict[str, bytes] = field(default_factory=dict)
    overlaps: list[str] = field(default_factory=list)

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.api.now += timedelta(seconds=seconds)

    @property
    def pods(self) -> list[Manifest]:
        """Return all pods."""
        return self.api.kinds("Pod")

    @property
    def unfinished(self) -> list[Manifest]:
        """Return the pods that have not ended."""
        return [pod for pod in self.pods if _phase(pod) not in ("Succeeded", "Failed")]

    def collect(self) -> None:
        """Garbage collection by owner reference, and pods that were told to go."""
        uids = {item["metadata"]["uid"] for item in self.api.objects.values()}
        for ref, item in list(self.api.objects.items()):
            owners = item["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners):
                if ref[0] == "Pod" and _phase(item) not in ("Succeeded", "Failed"):
                    self.api.terminate(ref)
                else:
                    self.api.remove(ref)

    def reap(self) -> None:
        """Remove pods whose grace period is over, as the kubelet does."""
        for ref, item in list(self.api.objects.items()):
            if ref[0] == "Pod" and item["metadata"].get("deletionTimestamp"):
                self.api.remove(ref)

    def run_jobsets(self) -> None:
        """Run the JobSet controller."""
        for jobset in self.api.kinds("JobSet"):
            self._run(jobset)

    def admit(self) -> None:
        """Kueue lets every queued JobSet run."""
        for jobset in self.api.kinds("JobSet"):
            if labels.KUEUE_QUEUE in jobset["metadata"]["labels"] and jobset["spec"]["suspend"]:
                jobset["spec"]["suspend"] = False
                self.api.put(JOBSETS, jobset)

    def schedule(self, pod: Manifest) -> None:
        """Give a pod a node."""
        if not pod["spec"].get("nodeName"):
            pod["spec"]["nodeName"] = "node-1"
            pod["status"]["conditions"] = [_scheduled(self.api.now)]
            self.api.put(PODS, pod)

    def start(self, pod: Manifest) -> None:
        """Start a pod."""
        self.schedule(pod)
        if _phase(pod) == "Pending":
            pod["status"] |= {"phase": "Running", "startTime": timestamps.to_text(self.api.now)}
            self.api.put(PODS, pod)

    def progress(
        self,
        step: int,
        stage: str = "training",
        name: str = "llama",
        checkpoint: int | None = None,
        best: Manifest | None = None,
        **metrics: float,
    ) -> None:
        """Write the trainer's progress document."""
        job = self.api.find(POSTTRAINJOBS, name)
        document: Manifest = {
            "jobUid": job["metadata"]["uid"] if job else "",
            "stage": stage,
            "step": step,
            "totalSteps": 10,
            "metrics": {"loss": 2.5 - step / 10, **metrics},
            "updated": timestamps.to_text(self.api.now),
        }
        if best is not None:
            document["best"] = best
        if checkpoint is not None:
            uri = f"file:///runs/{name}/checkpoints/{checkpoint}"
            document["checkpoint"] = {"step": checkpoint, "uri": uri, "time": timestamps.to_text(self.api.now)}
        self.files[f"file:///runs/{name}/progress.json"] = json.dumps(document).encode()

    def exit(self, pod: Manifest, code: int, message: str = "", reason: str = "") -> None:
        """Let the trainer exit."""
        self.start(pod)
        terminated = {"exitCode": code, "finishedAt": timestamps.to_text(self.api.now), "message": message}
        if reason:
            terminated["reason"] = reason
        pod["status"]["containerStatuses"] = [{"name": "trainer", "state": {"terminated": terminated}}]
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        self.api.put(PODS, pod)

    def disrupt(self, pod: Manifest, code: int = 137, reason: str = "DeletionByTaintManager") -> None:
        """Take the node away from the pod."""
        self.schedule(pod)
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "node went away"}
        pod["status"].setdefault("conditions", []).append(condition)
        self.exit(pod, code)

    def cannot_pull(
        self, pod: Manifest, reason: str = "ImagePullBackOff", words: str = "manifest for trainer:9 not found"
    ) -> None:
        """Let the image pull fail."""
        self.schedule(pod)
        state = {"waiting": {"reason": reason, "message": words}}
        pod["status"]["containerStatuses"] = [{"name": "trainer", "image": "trainer:9", "state": state}]
        self.api.put(PODS, pod)

    def run_jobs(self) -> None:
        """Run the Job controller for Jobs without a JobSet: one pod at a time, the policy as it is rendered."""
        for job in self.api.kinds("Job"):
            if labels.JOBSET_NAME in job["metadata"]["labels"]:
                continue
            status = job.setdefault("status", {"conditions": []})
            pods = [pod for pod in self.pods if _owner(pod) == _uid(job)]
            if status["conditions"] or any(_phase(pod) not in ("Succeeded", "Failed") for pod in pods):
                continue
            failed = [pod for pod in pods if _phase(pod) == "Failed"]
            rules = job["spec"]["podFailurePolicy"]["rules"]
            counted = [reason for pod in failed if " Ignore rule" not in (reason := _job_failure(rules, [pod])[1])]
            final = next((reason for reason in counted if " FailJob rule" in reason), "")
            if any(_phase(pod) == "Succeeded" for pod in pods):
                _set(job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods", self.api.now)
            elif final:
                _set(job, "Failed", "PodFailurePolicy", final, self.api.now)
            elif len(counted) > job["spec"]["backoffLimit"]:
                _set(job, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit", self.api.now)
            else:
                self._make_job_pod(job, len(pods))
            self.api.put(JOBS, job)

    def _make_job_pod(self, job: Manifest, number: int) -> None:
        template = job["spec"]["template"]
        meta = {
            "name": f"{job['metadata']['name']}-{_uid(job).removeprefix('uid-')}-{number}",
            "namespace": NAMESPACE,
            "labels": dict(template["metadata"]["labels"]),
            "ownerReferences": [{"kind": "Job", "uid": _uid(job)}],
        }
        spec = copied(template["spec"])
        self.api.create(PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
        self.api.writes -= 1  # not the operator's
        self.api.log.pop()

    @property
    def preflights(self) -> list[Manifest]:
        """Pods that compile and do not train."""
        return [pod for pod in self.pods if labels.is_of_preflight(pod)]

    def answer(self, pod: Manifest, outcome: str, code: int | None = None, **more: Any) -> None:
        """Preflight's pod ends with a verdict."""
        line = "peak 29.8 of 95.7 GiB per chip on v5p-128 (64 chips); 13.1 s/step estimated"
        verdict = {"outcome": outcome, "line": line, "peakGib": 29.8, "availableGib": 95.7, **more}
        code = (70 if outcome == "DoesNotFit" else 0) if code is None else code
        self.exit(pod, code, json.dumps({"exitCode": code, "preflight": verdict}))

    def _run(self, jobset: Manifest) -> None:
        status = jobset.setdefault("status", {"restarts": 0, "restartsCountTowardsMax": 0, "conditions": []})
        if _holds(jobset, "Completed") or _holds(jobset, "Failed"):
            self._stop([pod for pod in self._pods(jobset) if _phase(pod) not in ("Succeeded", "Failed")])
            return
        previous = [pod for pod in self._pods(jobset) if self._attempt(pod) < status["restarts"]]
        if previous:
            self._stop(previous)
            return
        current = self._pods(jobset)
        failed = [pod for pod in current if _phase(pod) == "Failed"]
        if failed:
            self._fail(jobset, failed)
        elif jobset["spec"].get("suspend"):
            self._stop([pod for pod in current if _phase(pod) != "Succeeded"])
        elif current and all(_phase(pod) == "Succeeded" for pod in current):
            _set(jobset, "Completed", "AllJobsCompleted", "jobset completed successfully", self.api.now)
            self.api.put(JOBSETS, jobset)
        else:
            self._make_pods(jobset, current)

    def _fail(self, jobset: Manifest, failed: list[Manifest]) -> None:
        """Job controller and JobSet controller: which rule of the rendered policies does the failure meet?"""
        template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        reason, message = _job_failure(template["podFailurePolicy"]["rules"], failed)
        policy, status = jobset["spec"]["failurePolicy"], jobset["status"]
        rule = next((each for each in policy["rules"] if _applies(each, reason, message)), None)
        action = rule["action"] if rule else "RestartJobSet"
        if action == "FailJobSet":
            _set(
                jobset,
                "Failed",
                "FailJobSetFailurePolicyAction",
                "applying FailJobSet failure policy action",
                self.api.now,
            )
        elif action == "RestartJobSet" and status["restartsCountTowardsMax"] >= policy["maxRestarts"]:
            _set(
                jobset,
                "Failed",
                "ReachedMaxRestarts",
                "jobset failed due to reaching max number of restarts",
                self.api.now,
            )
        else:
            status["restarts"] += 1
            status["restartsCountTowardsMax"] += action == "RestartJobSet"
            named = f"FailurePolicy_{rule['name']}" if rule else "DefaultFailurePolicy"
            _set(jobset, "RestartingJobSet", named, message, self.api.now)
        self.api.put(JOBSETS, jobset)

    def _make_pods(self, jobset: Manifest, current: list[Manifest]) -> None:
        replicated = jobset["spec"]["replicatedJobs"][0]
        for index in range(replicated["replicas"]):
            for host in range(replicated["template"]["spec"]["completions"]):
                name = f"{jobset['metadata']['name']}-slice-{index}-{host}-{jobset['status']['restarts']}"
                name += "-" + jobset["metadata"]["uid"].removeprefix("uid-")
                if not any(pod["metadata"]["name"] == name for pod in current):
                    place = {
                        labels.REPLICATED_JOB_NAME: replicated["name"],
                        labels.JOB_INDEX: str(index),
                        labels.COMPLETION_INDEX: str(host),
                    }
                    self._make_pod(jobset, replicated["template"]["spec"]["template"], name, place)

    def _make_pod(self, jobset: Manifest, template: Manifest, name: str, place: dict[str, str]) -> None:
        job = template["metadata"]["labels"][labels.JOB]
        for pod in self.unfinished:
            other = pod["metadata"]
            if labels.is_before_chips(pod):  # it trains nothing
                continue
            same_attempt = self._attempt(pod) == jobset["status"]["restarts"] and _owner(pod) == _uid(jobset)
            if other["labels"][labels.JOB] == job and not same_attempt:
                self.overlaps.append(f"{name} beside {other['name']}")
        marks = {**template["metadata"]["labels"], **place, labels.RESTART_ATTEMPT: str(jobset["status"]["restarts"])}
        self.api.create(
            PODS,
            {
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "labels": marks,
                    "ownerReferences": [{"kind": "JobSet", "uid": _uid(jobset)}],
                },
                "spec": copied(template["spec"]),
                "status": {"phase": "Pending"},
            },
        )
        self.api.writes -= 1  # not the operator's
        self.api.log.pop()

    def _pods(self, jobset: Manifest) -> list[Manifest]:
        return [pod for pod in self.pods if _owner(pod) == _uid(jobset)]

    def _stop(self, pods: list[Manifest]) -> None:
        for pod in pods:
            ref = ("Pod", NAMESPACE, pod["metadata"]["name"])
            if _phase(pod) in ("Succeeded", "Failed"):
                self.api.remove(ref)
            else:
                self.api.terminate(ref)

    @staticmethod
    def _attempt(pod: Manifest) -> int:
        return int(pod["metadata"]["labels"][labels.RESTART_ATTEMPT])


def _job_failure(rules: list[Manifest], pods: list[Manifest]) -> tuple[str, str]:
    """Reason and message of the Job's Failed condition, in the wording of kube-controller-manager."""
    for pod in pods:
        name = f"{NAMESPACE}/{pod['metadata']['name']}"
        code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        held = {each["type"] for each in pod["status"].get("conditions", []) if each["status"] == "True"}
        for index, rule in enumerate(rules):
            tail = f"matching {rule['action']} rule at index {index}"
            if "onExitCodes" in rule and code in rule["onExitCodes"]["values"]:
                words = f"Container trainer for pod {name} failed with exit code {code} {tail}"
                return "PodFailurePolicy", words
            for condition in rule.get("onPodConditions", []):
                if condition["type"] in held:
                    return "PodFailurePolicy", f"Pod {name} has condition {condition['type']} {tail}"
    return "BackoffLimitExceeded", "Job has reached the specified backoff limit"


def _applies(rule: Manifest, reason: str, message: str) -> bool:
    patterns = rule["onJobFailureMessagePatterns"]
    return reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns)


def _set(jobset: Manifest, kind: str, reason: str, message: str, now: datetime) -> None:
    kept = [each for each in jobset["status"]["conditions"] if each["type"] != kind]
    condition = {"type": kind, "status": "True", "reason": reason, "message": message}
    jobset["status"]["conditions"] = [*kept, {**condition, "lastTransitionTime": timestamps.to_text(now)}]


def _holds(item: Manifest, kind: str) -> bool:
    return any(each["type"] == kind and each["status"] == "True" for each in item["status"]["conditions"])


def _scheduled(now: datetime) -> Manifest:
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamps.to_text(now)}


def _phase(pod: Manifest) -> str:
    return str(pod["status"]["phase"])


def _uid(item: Manifest) -> str:
    return str(item["metadata"]["uid"])


def _owner(pod: Manifest) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _field(item: Any, path: list[str]) -> Any:
    return item if not path else _field(item.get(path[0]) or {}, path[1:])


def _merge(item: Manifest, patch: Manifest) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(item.get(key), dict):
            _merge(item[key], value)
        else:
            item[key] = copied(value)


def _is_heard(item: Manifest) -> bool:
    """Return True for what a watch of the operator selects."""
    return item["kind"] != EVENTS.kind or item.get("reason") in REASONS.values()


@dataclass
class Operator:
    """The operator as its process runs it: it hears of changes, looks, keeps timers, and may crash."""

    world: World
    settings: Settings = field(default_factory=Settings)
    client: Any = None
    cloud: CloudProvider | None = None
    cache: JobCache = field(default_factory=JobCache)
    estimate: Callable[[Observed], Estimate | None] = lambda state: None
    delivered: dict[Resource, int] = field(default_factory=lambda: dict.fromkeys(HEARD, 0))
    """How many of the changes each watch has delivered: one may be late while the others are not."""
    news: set[Key] = field(default_factory=set)
    timers: dict[Key, datetime] = field(default_factory=dict)

    @property
    def api(self) -> Api:
        """Return the API server."""
        return self.world.api

    def __post_init__(self) -> None:
        self._begin()

    def restart(self) -> None:
        """Replace the process: it remembers nothing and lists everything."""
        self.cache, self.timers, self.news = JobCache(), {}, set()
        self._begin()
        for resource in HEARD:
            self.list_anew(resource)

    def list_anew(self, resource: Resource) -> None:
        """List a kind, as a watch does that was too late to go on."""
        listed = self.api.list(resource)
        self.delivered[resource] = len(self.api.changes)
        items = [{"kind": resource.kind, **item} for item in listed.items]
        self._copy(resource).replace(list(filter(_is_heard, items)), listed.resource_version)

    def hear(self, count: int | None = None, resources: Sequence[Resource] = HEARD) -> None:
        """Deliver the next changes of these kinds, of each in order."""
        end = len(self.api.changes)
        for resource in resources:
            first = self.delivered.get(resource, 0)
            for index in range(first, end if count is None else min(end, first + count)):
                kind, item = self.api.changes[index]
                self.delivered[resource] = index + 1
                if item["kind"] == resource.kind and _is_heard(item):
                    self._copy(resource).take(kind, copied(item))

    def look(self, key: Key) -> None:
        """One reconcile. Whatever it raises, the job is looked at again."""
        has_event = key in self.news
        self.news.discard(key)
        self.timers.pop(key, None)
        client = Client(
            self.client or self.api, lambda verb, resource, _: CALLS.add((verb, resource)), on_object=self.copies.record
        )
        reconciler = Reconciler(
            client,
            self.copies,
            self.cache,
            self.settings,
            now=lambda: self.api.now,
            cloud=self.cloud,
            estimate=self.estimate,
        )
        try:
            again = reconciler.reconcile(key, has_event=has_event)
        except ApiError:
            self.news.add(key)
            return
        if again is not None:
            self.timers[key] = self.api.now + timedelta(seconds=again)
        self.news |= set(self.cache.next_in_queue())

    def due(self) -> list[Key]:
        """Return the keys whose time has come."""
        return sorted(self.news | {key for key, time in self.timers.items() if time <= self.api.now})

    def work(self) -> None:
        """Hear and look until there is nothing to do now."""
        self.hear()
        while self.due():
            self.look(self.due()[0])
            self.hear()

    def _begin(self) -> None:
        copies = {resource: empty_copy(resource) for resource in WATCHED}
        self.refusals = empty_refusals()
        self.refusals.synced.set()
        self.copies = Copies({(resource, ""): copy for resource, copy in copies.items()}, [self.refusals])
        for copy in copies.values():
            copy.listen(self._on_change)

    def _copy(self, resource: Resource) -> LocalCopy:
        copy = self.refusals if resource is EVENTS else self.copies.of(resource, None)
        assert copy is not None
        return copy

    def _on_change(self, kind: str, item: Manifest) -> None:
        if item["kind"] == "PostTrainJob":
            key = (NAMESPACE, item["metadata"]["name"])
            if kind == "DELETED":
                self.cache.forget(key)
                self.news.discard(key)
            else:
                self.cache.note_job(item)
                if not self.cache.is_own_write(item):
                    self.news.add(key)
            self.news |= set(self.cache.next_in_queue())
            return
        if item["kind"] == "Pod":
            self.cache.note_pod(item)
        name = (item["metadata"].get("labels") or {}).get(labels.JOB)
        if name and item["kind"] in ("Pod", "JobSet"):
            self.news.add((NAMESPACE, name))
