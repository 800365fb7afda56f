"""Why a run ends: failure classes, which of them use the restart budget, and the trainer's exit codes.

The trainer reports through its exit code and termination message; the operator adds what pods, JobSets and the cloud
report. Both use these tables.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class FailureClass(StrEnum):
    """The cause of a failure."""

    PREEMPTED = "Preempted"
    MAINTENANCE = "Maintenance"
    HOST_ERROR = "HostError"
    STOCKOUT = "Stockout"
    QUOTA = "Quota"
    RESERVATION = "Reservation"
    OUT_OF_MEMORY_HBM = "OutOfMemoryHBM"
    OUT_OF_MEMORY_HOST = "OutOfMemoryHost"
    HANG = "Hang"
    IMAGE_PULL = "ImagePull"
    STORAGE = "Storage"
    OUTPUT_CONFLICT = "OutputConflict"
    DATA_ERROR = "DataError"
    CONFIG_ERROR = "ConfigError"
    USER_CODE = "UserCode"
    SERVICE_LOST = "ServiceLost"
    NETWORK = "Network"
    UNKNOWN = "Unknown"


class ExitCode(IntEnum):
    """Exit codes of `python -m pttrainer run`. Codes from 64 follow sysexits where it defines one for the case."""

    OK = 0
    """The run finished its last step and its export."""
    UNKNOWN = 1
    """An unexpected error (a bug); restarted within `runPolicy.maxRestarts`."""
    USAGE = 2
    """Invalid command line."""
    CONFIG_ERROR = 64
    """The job cannot run as written."""
    DATA_ERROR = 65
    """The data cannot be used."""
    USER_CODE = 66
    """The user's own code (a reward file) is missing or broken."""
    NETWORK = 68
    """The hub, a bucket or the name service is unreachable or overloaded; retried after growing pauses."""
    SERVICE_LOST = 69
    """A server that the run needs, such as vLLM's, is unreachable; a restart resumes from the checkpoint."""
    OUT_OF_MEMORY_HBM = 70
    """The accelerator's memory is too small for this job; never retried."""
    OUT_OF_MEMORY_HOST = 71
    """The host's memory ran out."""
    HANG = 72
    """The trainer's own watchdog saw no progress."""
    OUTPUT_CONFLICT = 73
    """Another process is writing to the run directory."""
    STORAGE = 74
    """The run directory cannot be written (full, or not permitted)."""
    PREEMPTED_SAVED = 75
    """A checkpoint was saved after SIGTERM: a restart loses nothing."""


@dataclass(frozen=True)
class Reaction:
    """How the operator reacts to a failure class.

    charged: counts against `runPolicy.maxRestarts`; retried: a restart can help; limit: most restarts for this class
    alone, None where only `maxRestarts` (or nothing) bounds them.
    """

    charged: bool
    retried: bool
    limit: int | None = None


REACTIONS: dict[FailureClass, Reaction] = {
    FailureClass.PREEMPTED: Reaction(charged=False, retried=True),
    FailureClass.MAINTENANCE: Reaction(charged=False, retried=True),
    FailureClass.HOST_ERROR: Reaction(charged=False, retried=True),
    FailureClass.STOCKOUT: Reaction(charged=False, retried=True),
    FailureClass.QUOTA: Reaction(charged=False, retried=True),
    FailureClass.RESERVATION: Reaction(charged=False, retried=True),
    FailureClass.OUT_OF_MEMORY_HBM: Reaction(charged=True, retried=False),
    # once, because another process on the host may be the cause; the same data needs the same memory
    FailureClass.OUT_OF_MEMORY_HOST: Reaction(charged=True, retried=True, limit=1),
    FailureClass.HANG: Reaction(charged=True, retried=True),
    FailureClass.IMAGE_PULL: Reaction(charged=True, retried=False),
    FailureClass.STORAGE: Reaction(charged=True, retried=False),
    FailureClass.OUTPUT_CONFLICT: Reaction(charged=True, retried=False),
    FailureClass.DATA_ERROR: Reaction(charged=True, retried=False),
    FailureClass.CONFIG_ERROR: Reaction(charged=True, retried=False),
    FailureClass.USER_CODE: Reaction(charged=True, retried=False),
    FailureClass.SERVICE_LOST: Reaction(charged=True, retried=True),
    # an outage is not the job's: pauses grow to ten minutes, so these last for some three hours
    FailureClass.NETWORK: Reaction(charged=False, retried=True, limit=20),
    FailureClass.UNKNOWN: Reaction(charged=True, retried=True),
}

EXIT_CLASSES: dict[int, FailureClass] = {
    **{code: FailureClass[code.name] for code in ExitCode if code.name in FailureClass.__members__},
    ExitCode.USAGE: FailureClass.CONFIG_ERROR,
    ExitCode.PREEMPTED_SAVED: FailureClass.PREEMPTED,
}
"""The failure class of each exit code of the trainer; every other code is `Unknown`."""

FATAL_EXIT_CODES: tuple[int, ...] = tuple(
    sorted(int(code) for code, kind in EXIT_CLASSES.items() if not REACTIONS[kind].retried)
)
"""Exit codes after which the same job would fail again: the JobSet fails at once."""
