"""The status of a PostTrainJob: what the operator observes, written by one module of the operator."""

from ptapi.status.capacity import CapacityAttempt, CapacityStatus, NodePoolStatus
from ptapi.status.job_status import Condition, PostTrainJobStatus
from ptapi.status.preflight import PreflightChange, PreflightProgram, PreflightStatus
from ptapi.status.run import (
    CheckpointStatus,
    CostStatus,
    FailureStatus,
    Links,
    MetricsStatus,
    ProgressStatus,
    SamplersStatus,
    SandboxesStatus,
    ServeStatus,
    ServiceStatus,
    SlicesStatus,
    TimeStatus,
)

__all__ = [
    "CapacityAttempt",
    "CapacityStatus",
    "CheckpointStatus",
    "Condition",
    "CostStatus",
    "FailureStatus",
    "Links",
    "MetricsStatus",
    "NodePoolStatus",
    "PostTrainJobStatus",
    "PreflightChange",
    "PreflightProgram",
    "PreflightStatus",
    "ProgressStatus",
    "SamplersStatus",
    "SandboxesStatus",
    "ServeStatus",
    "ServiceStatus",
    "SlicesStatus",
    "TimeStatus",
]
