"""Files of a bucket, with the caller's own credentials (`gcloud auth application-default login`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ptctl.errors import CliError

_TIMEOUT_S = 60.0
_PATIENCE_S = 20.0
"""How long a request that fails is tried again."""
_HINT = "`gcloud auth application-default login` logs in; without rights there: gcloud storage cat {}"


def copy(run_uri: str, folder: Path, pattern: str, newest: int) -> None:
    """Copy the newest files, by name, of a pattern below a run directory into a folder here."""
    bucket, _, prefix = run_uri.removeprefix("gs://").rstrip("/").partition("/")
    literal = pattern.partition("*")[0]
    with _named(f"{run_uri}/{pattern}"):
        start = f"{prefix}/{literal}".lstrip("/")
        listed = _client().list_blobs(bucket, prefix=start, timeout=_TIMEOUT_S, retry=_retry())
        names = {str(blob.name).removeprefix(f"{prefix}/"): blob for blob in listed}
        chosen = sorted(name for name in names if fnmatchcase(name, pattern))[-newest:]
        for name in chosen:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            names[name].download_to_filename(str(path), timeout=_TIMEOUT_S, retry=_retry())


def write_once(uri: str, parts: Sequence[bytes | memoryview]) -> None:
    """Write an object unless it exists."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    with _named(uri), tempfile.TemporaryFile() as file:
        blob = _client().bucket(bucket).blob(name)
        if blob.exists(timeout=_TIMEOUT_S, retry=_retry()):
            return
        file.writelines(parts)
        file.seek(0)
        blob.upload_from_file(file, timeout=_TIMEOUT_S, retry=_retry())


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Raise CliError with the URI and what the service, or the search for credentials, answers."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise CliError(f"{uri} cannot be reached: {error}", _HINT.format(uri)) from error


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(_PATIENCE_S)


@cache
def _client() -> Any:
    from google.cloud import storage

    return storage.Client()
