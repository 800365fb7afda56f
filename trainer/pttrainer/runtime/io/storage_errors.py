"""What is wrong with storage: which errors mean a disk or a service, and what to say of them."""

import errno

from pttrainer.errors import StorageError

_FULL = ("No space left", "Disk quota exceeded", "File too large")
_DENIED = ("Read-only file system", "Permission denied")


def write_error(uri: str, error: OSError) -> StorageError:
    """Return the error for a run directory that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{uri}: no space left; hint: free space or choose another spec.output.uri, then run again")
    return StorageError(f"{uri}: cannot be written: {error.strerror or error}")


def is_storage_problem(error: BaseException) -> bool:
    """Return True for a full or read-only disk, even if a library wrapped the error in its own exception."""
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
    if isinstance(error, OSError) and error.errno in numbers:
        return True
    return any(phrase in str(error) for phrase in (*_FULL, *_DENIED))


def is_service_problem(error: BaseException) -> bool:
    """Return True if a bucket is unreachable or refuses, as the checkpoint libraries report it."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, (OSError, GoogleAPIError, GoogleAuthError)):
        return True
    return type(error).__module__.startswith(("gcsfs.", "aiohttp."))


def storage_reason(error: BaseException) -> str:
    """Return the reason in a few words: libraries bury it behind the names of all files they had open."""
    return next(
        (phrase for phrase in (*_FULL, *_DENIED) if phrase in str(error)), str(error).strip().split("\n")[0][:200]
    )
