"""Phases, condition types and condition reasons of a PostTrainJob's status."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The one-word state that `kubectl get ptj` shows."""

    PENDING = "Pending"
    PREFLIGHT = "Preflight"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        """Return True if the job has ended for good."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class ConditionType(StrEnum):
    """Types of `status.conditions`."""

    VALIDATED = "Validated"
    PREFLIGHTED = "Preflighted"
    QUOTA_RESERVED = "QuotaReserved"
    CAPACITY_READY = "CapacityReady"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """Reasons of conditions and events. A failed job's reason is its failure class."""

    ACCEPTED = "Accepted"
    """The spec is valid."""
    INVALID_SPEC = "InvalidSpec"
    """The spec is not valid; the message lists every finding."""
    PREFLIGHT_SKIPPED = "Skipped"
    """`preflight: Skip`, or CPU devices with `preflight` unset."""
    PREFLIGHT_RUNNING = "PreflightRunning"
    """The job's step is being compiled for its chips, on a CPU."""
    FITS = "Fits"
    """The job fits its chips."""
    DOES_NOT_FIT = "DoesNotFit"
    """The job does not fit its chips; the message names changes that make it fit."""
    PREFLIGHT_UNDECIDED = "Undecided"
    """Preflight could not decide whether the job fits; the job proceeds."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    """Kueue has not admitted the JobSet yet; or, without Kueue, other jobs are ahead in the queue for its chips."""
    ADMITTED = "Admitted"
    """Kueue admitted the JobSet; or, without Kueue, the job is first in the queue for its chips."""
    NO_QUEUE = "NoQueue"
    """The job sets no queue."""
    EVICTED = "Evicted"
    """Kueue evicted the job; it waits for quota again."""
    WAITING_FOR_NODES = "WaitingForNodes"
    """Pods wait for nodes that fit."""
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    """Node pools are being created, or an entry of spec.capacity is about to be tried."""
    CAPACITY_UNAVAILABLE = "CapacityUnavailable"
    """An entry of spec.capacity was tried without success; the next one follows."""
    RELEASE_REFUSED = "ReleaseRefused"
    """Node pools that the job no longer needs still exist, because GKE refuses to delete them or is unreachable; the
    operator retries."""
    NOT_RELEASED = "NotReleased"
    """Node pools remain that the operator cannot identify as its own any more: delete them by hand."""
    RELEASED = "Released"
    """The job has ended and its node pools are deleted."""
    NODES_READY = "NodesReady"
    """All pods have nodes."""
    PODS_STARTING = "PodsStarting"
    """Pods have nodes; the trainer has not finished a step."""
    TRAINING = "Training"
    """The trainer runs training steps."""
    HANG = "Hang"
    """The run makes no progress; its pods are deleted and restarted."""
    RESTARTING = "Restarting"
    """The run restarts from its newest checkpoint."""
    SUSPENDED = "Suspended"
    """`runPolicy.suspend` is true and all pods are gone."""
    SUSPENDING = "Suspending"
    """`runPolicy.suspend` is true; the trainer saves a checkpoint and stops."""
    RESUMED = "Resumed"
    """`runPolicy.suspend` is false again."""
    SUCCEEDED = "Succeeded"
    """The trainer finished."""
    CREATE_FAILED = "CreateFailed"
    """The API server refuses an object or a pod of the job; the operator, or the pod's controller, retries."""
    WRITE_FAILED = "WriteFailed"
    """A write of the operator failed, such as by a webhook that is down; the operator retries."""
    CLEANING_UP = "CleaningUp"
    """Objects or pods of the previous attempt are still being deleted."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """`runPolicy.activeDeadlineSeconds` passed."""
    CREATED = "Created"
    """An object of the job was created."""
    OUTPUT_CONFLICT = "OutputConflict"
    """The run directory belongs to another job."""
