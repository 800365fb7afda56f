"""The trainer's exceptions: each knows the exit code and failure class that it ends the run with.

A message names the object or field, the value seen and what is accepted, then `hint: …`. Everything else
that escapes is a bug: it ends with `ExitCode.UNKNOWN` and is the only case that prints a traceback.
"""

from ptapi.failures import ExitCode


class TrainerError(Exception):
    """A foreseen end of the run."""

    exit_code = ExitCode.UNKNOWN


class ConfigError(TrainerError):
    """The job cannot run as written."""

    exit_code = ExitCode.CONFIG_ERROR


class DataError(TrainerError):
    """The data cannot be used."""

    exit_code = ExitCode.DATA_ERROR


class UserCodeError(TrainerError):
    """The user's own code (a reward file) is missing or broken."""

    exit_code = ExitCode.USER_CODE


class ServiceLost(TrainerError):
    """A server that the run needs went away and did not return."""

    exit_code = ExitCode.SERVICE_LOST


class StorageError(TrainerError):
    """The run directory cannot be written."""

    exit_code = ExitCode.STORAGE


class NetworkError(StorageError):
    """The hub, a bucket or the name service is unreachable or overloaded; the same call may succeed later."""

    exit_code = ExitCode.NETWORK


class OutputConflict(TrainerError):
    """Another process writes the run directory."""

    exit_code = ExitCode.OUTPUT_CONFLICT


class TransferError(TrainerError):
    """The devices that sample do not hold the weights that were sent; starting again may help."""


class Preempted(TrainerError):
    """The run was asked to stop and a checkpoint was saved."""

    exit_code = ExitCode.PREEMPTED_SAVED


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
