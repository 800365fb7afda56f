"""Phases, condition types and condition reasons of a PostTrainJob's status, a sentence each."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The one word that `kubectl get ptj` shows."""

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
        """Whether the job has ended for good."""
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
    """`preflight: Skip`, or CPU devices and nothing said."""
    PREFLIGHT_RUNNING = "PreflightRunning"
    """The job's step is being compiled for its chips, on a CPU."""
    FITS = "Fits"
    """The job fits its chips."""
    DOES_NOT_FIT = "DoesNotFit"
    """The job does not fit its chips; the message names changes with which it does."""
    PREFLIGHT_UNDECIDED = "Undecided"
    """Preflight could not say whether the job fits; the job goes on."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    """Kueue has not admitted the JobSet yet; or, without Kueue, other jobs come first for the same chips."""
    ADMITTED = "Admitted"
    """Kueue admitted the JobSet; or, without Kueue, the job's turn came."""
    NO_QUEUE = "NoQueue"
    """The job names no queue."""
    EVICTED = "Evicted"
    """Kueue took the quota back; the job waits for it again."""
    WAITING_FOR_NODES = "WaitingForNodes"
    """Pods wait for nodes that fit."""
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    """Node pools are being made, or an entry of spec.capacity is about to be tried."""
    CAPACITY_UNAVAILABLE = "CapacityUnavailable"
    """An entry of spec.capacity was tried and given up; the next one follows."""
    RELEASE_REFUSED = "ReleaseRefused"
    """GKE refuses to delete node pools that the job needs no more; it is asked again and again."""
    RELEASED = "Released"
    """Those node pools are gone now."""
    NODES_READY = "NodesReady"
    """All pods have nodes."""
    PODS_STARTING = "PodsStarting"
    """Pods have nodes; the trainer has not taken a step."""
    TRAINING = "Training"
    """The trainer takes steps."""
    HANG = "Hang"
    """The run shows no sign of life; its pods are deleted and start again."""
    RESTARTING = "Restarting"
    """The run starts again from its last checkpoint."""
    SUSPENDED = "Suspended"
    """`runPolicy.suspend` is true and all pods are gone."""
    SUSPENDING = "Suspending"
    """`runPolicy.suspend` is true; the trainer saves a checkpoint and stops."""
    RESUMED = "Resumed"
    """`runPolicy.suspend` is false again."""
    SUCCEEDED = "Succeeded"
    """The trainer finished."""
    CREATE_FAILED = "CreateFailed"
    """The API server refused an object of the job; the operator tries again."""
    CLEANING_UP = "CleaningUp"
    """Objects or pods of before are still going away."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """`runPolicy.activeDeadlineSeconds` passed."""
    CREATED = "Created"
    """An object of the job was created."""
    OUTPUT_CONFLICT = "OutputConflict"
    """The run directory belongs to another job."""
