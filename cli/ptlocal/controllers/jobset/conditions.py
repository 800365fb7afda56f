"""Conditions of a JobSet with the reasons and messages of the real controller, and their Events."""

from dataclasses import dataclass, field

from ptkube.resources import Manifest

COMPLETED = "Completed"
FAILED = "Failed"
SUSPENDED = "Suspended"
RESTARTING = "RestartingJobSet"
STARTUP_IN_PROGRESS = "StartupPolicyInProgress"
STARTUP_COMPLETED = "StartupPolicyCompleted"

_EXCLUSIVE = {STARTUP_IN_PROGRESS: STARTUP_COMPLETED, STARTUP_COMPLETED: STARTUP_IN_PROGRESS}


@dataclass(frozen=True)
class EventNote:
    """An Event to record."""

    kind: str
    reason: str
    message: str


@dataclass
class StatusDraft:
    """The status under construction: a copy of the old one, written once if it changed."""

    status: Manifest
    now: str
    events: list[EventNote] = field(default_factory=list)

    def is_true(self, kind: str) -> bool:
        """Return True if the condition is True."""
        return any(c["type"] == kind and c["status"] == "True" for c in self._conditions())

    def set(self, kind: str, status: str, reason: str, message: str, *, warning: bool = False) -> None:
        """Set a condition. One that was never True is not added as False; a repetition changes nothing."""
        conditions = self._conditions()
        new = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": self.now}
        old = next((c for c in conditions if c["type"] == kind), None)
        if old is None and status != "True":
            return
        if old is not None:
            if all(old.get(k) == new[k] for k in ("status", "reason", "message")):
                return
            if old["status"] == status:
                new["lastTransitionTime"] = old["lastTransitionTime"]
        rest = [c for c in conditions if c["type"] != kind]
        other = _EXCLUSIVE.get(kind)
        if status == "True" and other:
            rest = [{**c, "status": "False"} if c["type"] == other else c for c in rest]
        at = conditions.index(old) if old is not None else len(rest)
        self.status["conditions"] = [*rest[:at], new, *rest[at:]]
        self.events.append(EventNote("Warning" if warning else "Normal", reason, message))

    def complete(self) -> None:
        """Mark the JobSet as completed."""
        self.set(COMPLETED, "True", "AllJobsCompleted", "jobset completed successfully")
        self.set(RESTARTING, "False", "JobSetCompleted", "jobset completed successfully")
        self.status["terminalState"] = COMPLETED

    def fail(self, reason: str, message: str) -> None:
        """Mark the JobSet as failed."""
        self.set(FAILED, "True", reason, message, warning=True)
        self.set(RESTARTING, "False", "JobSetFailed", "jobset failed")
        self.status["terminalState"] = FAILED

    def suspend(self) -> None:
        """Mark the JobSet as suspended."""
        self.set(SUSPENDED, "True", "SuspendedJobs", "jobset is suspended")
        self.set(RESTARTING, "False", "JobSetSuspended", "jobset is suspended")

    def resume(self) -> None:
        """Mark the JobSet as resumed."""
        self.set(SUSPENDED, "False", "ResumeJobs", "jobset is resumed")

    def startup_in_progress(self) -> None:
        """Report that the startup policy is in progress."""
        self.set(
            STARTUP_IN_PROGRESS, "True", "InOrderStartupPolicyInProgress", "in order startup policy is in progress"
        )

    def startup_completed(self) -> None:
        """Report that the startup policy is completed."""
        self.set(STARTUP_COMPLETED, "True", "InOrderStartupPolicyCompleted", "in order startup policy has completed")

    def _conditions(self) -> list[Manifest]:
        return list(self.status.get("conditions") or [])
