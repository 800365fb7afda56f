"""Count finished pods of a Job in its status, each exactly once, even if the controller dies at any point.

As in Kubernetes, a pod keeps a finalizer until its count is in the status. A failure is first listed by uid in
`uncountedTerminatedPods`, and moves into the total once the pod is released. A success of an Indexed Job needs no such
step, because its index shows if it was counted.
"""

from ptkube.objects import is_deleting, pod_phase
from ptkube.resources import Manifest
from ptlocal.controllers.job.indexes import format_indexes, parse_indexes
from ptlocal.controllers.job.job_pods import index_of, is_terminal, is_tracked
from ptlocal.controllers.job.pod_failure_policy import judge


class PodCounts:
    """Counts pods in `status`, in place. `indexes` is the number of completions of an Indexed Job, else None."""

    def __init__(self, status: Manifest, indexes: int | None, waits_for_end: bool) -> None:
        self._status = status
        self._indexes = indexes
        self.waits_for_end = waits_for_end
        """podReplacementPolicy Failed: a terminating pod counts, and is replaced, only when it has ended."""
        self.completed = parse_indexes(status.get("completedIndexes") or "")

    def total(self, kind: str) -> int:
        """Return `succeeded` or `failed`, including pods that are not released yet."""
        waiting = (self._status.get("uncountedTerminatedPods") or {}).get(kind) or []
        return number(self._status.get(kind), 0) + len(waiting)

    def settle(self, pods: list[Manifest]) -> None:
        """Move released pods from the waiting list into the totals."""
        uncounted = self._status.get("uncountedTerminatedPods")
        if not uncounted:
            return
        tracked = {pod["metadata"]["uid"] for pod in pods if is_tracked(pod)}
        rest: Manifest = {}
        for kind in ("succeeded", "failed"):
            uids = uncounted.get(kind) or []
            waiting = [uid for uid in uids if uid in tracked]
            self._status[kind] = number(self._status.get(kind), 0) + len(uids) - len(waiting)
            if waiting:
                rest[kind] = waiting
        self._status["uncountedTerminatedPods"] = rest

    def count(self, pods: list[Manifest], policy: Manifest | None) -> tuple[list[Manifest], str | None]:
        """Count finished pods. Return those to release, and why the policy fails the Job if it does."""
        counted, fatal = [], None
        for pod in pods:
            if not is_tracked(pod) or not self._has_ended(pod):
                continue
            counted.append(pod)
            if pod_phase(pod) == "Succeeded" and not self._is_held("failed", pod):
                self._count_success(pod)
                continue
            verdict = judge(policy, pod)
            fatal = fatal or verdict.message
            if verdict.counts:
                self._hold("failed", pod)
        if self._indexes is not None:
            self._status["completedIndexes"] = format_indexes(self.completed)
            self._status["succeeded"] = len(self.completed)
        return counted, fatal

    def _has_ended(self, pod: Manifest) -> bool:
        return is_terminal(pod) or (is_deleting(pod) and not self.waits_for_end)

    def _count_success(self, pod: Manifest) -> None:
        if self._indexes is None:
            self._hold("succeeded", pod)
        elif 0 <= index_of(pod) < self._indexes:
            self.completed.add(index_of(pod))

    def _is_held(self, kind: str, pod: Manifest) -> bool:
        """Failed: on its way out when it was counted, and then came to a good end, which is too late."""
        return pod["metadata"]["uid"] in ((self._status.get("uncountedTerminatedPods") or {}).get(kind) or [])

    def _hold(self, kind: str, pod: Manifest) -> None:
        if not self._is_held(kind, pod):
            uids = self._status.setdefault("uncountedTerminatedPods", {}).setdefault(kind, [])
            uids.append(pod["metadata"]["uid"])


def number(value: int | None, default: int) -> int:
    """Return the value, or the default for None."""
    return default if value is None else int(value)
