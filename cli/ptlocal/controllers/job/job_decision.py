"""Decide what to do about one Job: a pure function from the Job and its pods to what to write.

A failing Job first gets FailureTarget, then its running pods are deleted, then it becomes Failed. `status_counts`
counts each pod exactly once.

Left out: successPolicy, backoffLimitPerIndex, parallelism above completions for elastic Jobs.
"""

import copy
from dataclasses import dataclass, field

from ptkube.backoff import pause_s
from ptkube.objects import is_deleting, pod_phase
from ptkube.resources import Manifest
from ptkube.timestamps import seconds_between
from ptlocal.controllers.job.job_pods import finished_at, index_of, is_active, is_ready, is_terminal, is_tracked
from ptlocal.controllers.job.status_counts import PodCounts, number

_BACKOFF_S = 10.0
_LONGEST_BACKOFF_S = 600.0
_DEFAULT_BACKOFF_LIMIT = 6


@dataclass
class Decision:
    """Writes, in this order: status, release (finalizers), delete, create."""

    status: Manifest | None = None
    release: list[Manifest] = field(default_factory=list)
    delete: list[Manifest] = field(default_factory=list)
    create: list[int | None] = field(default_factory=list)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    delete_job: bool = False
    again_s: float | None = None


def decide(job: Manifest, pods: list[Manifest], now: str) -> Decision:
    """Return the decision. `pods` are those whose controller is this Job."""
    return _Evaluation(job, pods, now).decide()


class _Evaluation:
    """One evaluation of one Job. The steps share its fields; each fills part of the decision."""

    def __init__(self, job: Manifest, pods: list[Manifest], now: str) -> None:
        self.job = job
        self.pods = pods
        self.now = now
        self.spec = job["spec"]
        self.old_status = job.get("status") or {}
        self.status = copy.deepcopy(self.old_status)
        self.decision = Decision()
        self.active = [pod for pod in pods if is_active(pod)]
        self.leaving = [pod for pod in pods if is_deleting(pod) and not is_terminal(pod)]
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.parallelism = number(self.spec.get("parallelism"), 1)
        completions = self.spec.get("completions")
        # neither given means one; only parallelism given means a work queue, which any success ends
        self.completions = completions if completions is not None or self.spec.get("parallelism") else 1
        default = "Failed" if self.spec.get("podFailurePolicy") else "TerminatingOrFailed"
        waits_for_end = (self.spec.get("podReplacementPolicy") or default) == "Failed"
        self.pod_counts = PodCounts(self.status, number(self.completions, 0) if self.indexed else None, waits_for_end)

    def decide(self) -> Decision:
        """Run the steps."""
        if is_deleting(self.job):
            self.decision.release = [pod for pod in self.pods if is_tracked(pod)]
            return self.decision
        if self._is_true("Complete") or self._is_true("Failed"):
            self.decision.release = [pod for pod in self.pods if is_tracked(pod)]
            self.decision.delete = self.active
            self._expire()
            return self.decision
        self.pod_counts.settle(self.pods)
        self.decision.release, fatal = self.pod_counts.count(self.pods, self.spec.get("podFailurePolicy"))
        self._judge(fatal)
        self._suspend_or_start()
        self._manage_pods()
        self._finish()
        self._write_counts()
        if self.status != self.old_status:
            self.decision.status = self.status
        return self.decision

    # --- verdicts

    def _judge(self, fatal: str | None) -> None:
        if self._is_true("FailureTarget") or self._is_true("SuccessCriteriaMet"):
            return
        limit = number(self.spec.get("backoffLimit"), _DEFAULT_BACKOFF_LIMIT)
        if fatal:
            self._fail_target("PodFailurePolicy", fatal)
        elif self.pod_counts.total("failed") > limit or self._restarts_exceed(limit):
            self._fail_target("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif self._past_deadline():
            self._fail_target("DeadlineExceeded", "Job was active longer than specified deadline")
        elif self._has_succeeded():
            self._set("SuccessCriteriaMet", "True", "CompletionsReached", _REACHED)

    def _has_succeeded(self) -> bool:
        succeeded = self.pod_counts.total("succeeded")
        if self.completions is not None:
            return succeeded >= int(self.completions)
        return succeeded > 0 and not self.active

    def _restarts_exceed(self, limit: int) -> bool:
        """Return True if restarts exceed the limit, including in-place restarts with restartPolicy OnFailure."""
        if self.spec["template"]["spec"].get("restartPolicy") != "OnFailure":
            return False
        restarts = sum(
            int(status.get("restartCount") or 0)
            for pod in self.active
            for status in (pod.get("status") or {}).get("containerStatuses") or []
        )
        return restarts > 0 if limit == 0 else restarts >= limit

    def _past_deadline(self) -> bool:
        deadline_s, started = self.spec.get("activeDeadlineSeconds"), self.status.get("startTime")
        if deadline_s is None or not started or self.spec.get("suspend"):
            return False
        left_s = float(deadline_s) - seconds_between(started, self.now)
        if left_s > 0:
            self.decision.again_s = left_s
        return bool(left_s <= 0)

    def _fail_target(self, reason: str, message: str) -> None:
        self._set("FailureTarget", "True", reason, message)

    # --- pods

    def _suspend_or_start(self) -> None:
        if self._target():
            return
        if self.spec.get("suspend"):
            if not self._is_true("Suspended"):
                self._set("Suspended", "True", "JobSuspended", "Job suspended")
                self.status.pop("startTime", None)
                self.decision.events.append(("Normal", "Suspended", "Job suspended"))
            return
        if self._is_true("Suspended"):
            self._set("Suspended", "False", "JobResumed", "Job resumed")
            self.decision.events.append(("Normal", "Resumed", "Job resumed"))
            self.status["startTime"] = self.now  # the deadline does not run while suspended
        if not self.status.get("startTime"):
            self.status["startTime"] = self.now

    def _manage_pods(self) -> None:
        if self._target():
            self.decision.delete = self.active
            return
        if self.spec.get("suspend"):
            self._delete_uncounted(self.active)
            return
        occupied = self.active + (self.leaving if self.pod_counts.waits_for_end else [])
        remaining = self.parallelism
        if self.completions is not None:
            remaining = min(remaining, int(self.completions) - self.pod_counts.total("succeeded"))
        elif self.pod_counts.total("succeeded"):
            remaining = len(occupied)  # a work queue winds down after the first success
        surplus = len(occupied) - remaining
        if surplus > 0:
            self._delete_uncounted(self.active[-surplus:])
        elif surplus < 0 and not self._backing_off():
            self.decision.create = self._missing(-surplus, occupied)

    def _delete_uncounted(self, pods: list[Manifest]) -> None:
        """Delete pods without counting them: the Job no longer wants them, so they are no failures."""
        self.decision.release += [pod for pod in pods if is_tracked(pod)]
        self.decision.delete += pods

    def _missing(self, count: int, occupied: list[Manifest]) -> list[int | None]:
        if not self.indexed:
            return [None] * count
        taken = self.pod_counts.completed | {index_of(pod) for pod in occupied}
        free: list[int | None] = [i for i in range(number(self.completions, 0)) if i not in taken]
        return free[:count]

    def _backing_off(self) -> bool:
        """Return True during back-off: ten seconds after a failed pod, doubling up to ten minutes."""
        failures = self.pod_counts.total("failed")
        ended = [t for t in (finished_at(pod) for pod in self.pods if pod_phase(pod) == "Failed") if t]
        if not failures or not ended:
            return False
        left_s = pause_s(failures, _BACKOFF_S, _LONGEST_BACKOFF_S) - seconds_between(max(ended), self.now)
        if left_s > 0:
            self.decision.again_s = min(left_s, self.decision.again_s or left_s)
        return left_s > 0

    # --- the end

    def _target(self) -> bool:
        return self._is_true("FailureTarget") or self._is_true("SuccessCriteriaMet")

    def _finish(self) -> None:
        """Set Complete or Failed once every pod has ended and been counted."""
        waiting = self.status.get("uncountedTerminatedPods") or {}
        if not self._target() or self.active or self.leaving or any(waiting.values()):
            return
        if self._is_true("SuccessCriteriaMet"):
            self._set("Complete", "True", "CompletionsReached", _REACHED)
            self.status["completionTime"] = self.now
            self.decision.events.append(("Normal", "Completed", "Job completed"))
        else:
            target = next(c for c in self.status["conditions"] if c["type"] == "FailureTarget")
            self._set("Failed", "True", target["reason"], target["message"])
            self.decision.events.append(("Warning", target["reason"], target["message"]))

    def _expire(self) -> None:
        ttl_s = self.spec.get("ttlSecondsAfterFinished")
        if ttl_s is None:
            return
        ended = next(
            c["lastTransitionTime"]
            for c in self.status["conditions"]
            if c["type"] in ("Complete", "Failed") and c["status"] == "True"
        )
        left_s = ttl_s - seconds_between(ended, self.now)
        self.decision.delete_job = left_s <= 0
        self.decision.again_s = left_s if left_s > 0 else None

    def _write_counts(self) -> None:
        self.status["active"] = len(self.active)
        self.status["ready"] = sum(is_ready(pod) for pod in self.active)
        self.status["terminating"] = len(self.leaving)
        self.status.setdefault("uncountedTerminatedPods", {})
        for kind in ("active", "succeeded", "failed"):
            if not self.status.get(kind) and kind not in self.old_status:
                self.status.pop(kind, None)  # Kubernetes omits these zeros
        if not self.status.get("completedIndexes"):
            self.status.pop("completedIndexes", None)

    def _is_true(self, kind: str) -> bool:
        return any(c["type"] == kind and c["status"] == "True" for c in self.status.get("conditions") or [])

    def _set(self, kind: str, status: str, reason: str, message: str) -> None:
        conditions = [c for c in self.status.get("conditions") or [] if c["type"] != kind]
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastProbeTime": self.now,
                "lastTransitionTime": self.now,
            }
        )
        self.status["conditions"] = conditions


_REACHED = "Reached expected number of succeeded pods"
