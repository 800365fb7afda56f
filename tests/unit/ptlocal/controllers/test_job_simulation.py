"""The Job controller against a small in-memory server: pods end at random, the controller dies at random.

Whatever happens, the Job ends, every failure is counted once, no pod stays held by a finalizer, and no index ever has
two pods at work.
"""

import copy
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptkube.resources import Manifest
from ptlocal.controllers.job.job_decision import decide
from ptlocal.controllers.job.job_pods import build_pod, index_of, is_active, is_terminal, is_tracked

_T0 = 1_767_225_600  # 2026-01-01


class World:
    def __init__(self, completions: int, parallelism: int, backoff_limit: int) -> None:
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}}
        self.job: Manifest = {
            "metadata": {"name": "j", "namespace": "ns", "uid": "ju"},
            "spec": {
                "completions": completions, "parallelism": parallelism, "completionMode": "Indexed",
                "backoffLimit": backoff_limit, "template": template,
            },
            "status": {},
        }  # fmt: skip
        self.pods: list[Manifest] = []
        self.now_s = _T0
        self.made = 0
        self.failed: set[str] = set()
        self.succeeded: set[int] = set()

    @property
    def now(self) -> str:
        return datetime.fromtimestamp(self.now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def is_over(self) -> bool:
        conditions = self.job["status"].get("conditions") or []
        return any(c["type"] in ("Complete", "Failed") for c in conditions)

    def reconcile(self, writes: int) -> None:
        """One reconcile that is killed after so many writes."""
        decision = decide(copy.deepcopy(self.job), copy.deepcopy(self.pods), self.now)
        steps: list[Any] = []
        if decision.status is not None:
            steps.append(lambda: self.job.update(status=copy.deepcopy(decision.status)))
        steps += [lambda p=p: self.release(p) for p in decision.release]
        steps += [lambda p=p: self.delete(p) for p in decision.delete]
        steps += [lambda i=i: self.create(i) for i in decision.create]
        for step in steps[:writes]:
            step()

    def create(self, index: int | None) -> None:
        pod = build_pod(self.job, index)
        self.made += 1
        pod["metadata"].update(name=f"p{self.made}", uid=f"u{self.made}", resourceVersion="1")
        pod["status"] = {"phase": "Running"}
        self.pods.append(pod)
        at_work = [index_of(p) for p in self.pods if is_active(p)]
        assert len(at_work) == len(set(at_work)), "two pods for one index"

    def release(self, released: Manifest) -> None:
        for pod in self.pods:
            if pod["metadata"]["uid"] == released["metadata"]["uid"]:
                if not is_terminal(pod) and not self.is_over():  # counted while it leaves
                    self.failed.add(pod["metadata"]["uid"])
                pod["metadata"]["finalizers"] = []
        self.sweep()

    def delete(self, deleted: Manifest) -> None:
        for pod in self.pods:
            if pod["metadata"]["uid"] == deleted["metadata"]["uid"]:
                pod["metadata"]["deletionTimestamp"] = self.now
        self.sweep()

    def end(self, pod: Manifest, code: int) -> None:
        """What the kubelet does when the process ends."""
        pod["status"] = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [
                {"name": "main", "state": {"terminated": {"exitCode": code, "finishedAt": self.now}}}
            ],
        }
        if is_tracked(pod):
            # Counted on its way out, by a controller that died before it let go: it stays a failure.
            uncounted = self.job["status"].get("uncountedTerminatedPods") or {}
            if code == 0 and pod["metadata"]["uid"] not in (uncounted.get("failed") or []):
                self.succeeded.add(index_of(pod))
            else:
                self.failed.add(pod["metadata"]["uid"])
        self.sweep()

    def sweep(self) -> None:
        """A deleted pod is gone once it has ended and nobody holds it."""
        self.pods = [
            p
            for p in self.pods
            if not (p["metadata"].get("deletionTimestamp") and is_terminal(p) and not is_tracked(p))
        ]


events = st.lists(
    st.one_of(
        st.tuples(st.just("reconcile"), st.integers(0, 8)),
        st.tuples(st.just("end"), st.integers(0, 100)),
        st.tuples(st.just("wait"), st.integers(1, 30)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@example(2, 2, 0, [("reconcile", 3), ("end", 1), ("reconcile", 3), ("reconcile", 1), ("end", 0)])
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), events)
def test_every_history_ends_with_each_pod_counted_once(
    completions: int, parallelism: int, backoff_limit: int, history: list[tuple[str, int]]
) -> None:
    world = World(completions, parallelism, backoff_limit)
    for kind, number in history:
        running = [p for p in world.pods if not is_terminal(p)]
        if kind == "reconcile":
            world.reconcile(writes=number)
        elif kind == "wait":
            world.now_s += number
        elif running:
            world.end(running[number % len(running)], code=number % 3)
    for _ in range(60):
        before = (copy.deepcopy(world.job["status"]), len(world.pods), world.made)
        world.reconcile(writes=100)
        if world.is_over() and before == (world.job["status"], len(world.pods), world.made):
            break
        for pod in [p for p in world.pods if not is_terminal(p)]:
            # a pod that is being deleted was told to stop and says so with its exit code
            world.end(pod, code=143 if pod["metadata"].get("deletionTimestamp") else 0)
        world.now_s += 700
    status = world.job["status"]
    assert world.is_over(), status
    assert status.get("succeeded", 0) == len(world.succeeded)
    assert status.get("failed", 0) == len(world.failed)
    assert not any(is_tracked(p) for p in world.pods)
    assert status.get("active", 0) == 0
    complete = any(c["type"] == "Complete" for c in status["conditions"])
    assert complete == (len(world.succeeded) == completions)
    assert complete or len(world.failed) > backoff_limit
