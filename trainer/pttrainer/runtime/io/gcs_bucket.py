"""`gs://`: objects of a Google Cloud Storage bucket appear atomically, and the service decides between two writers."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pttrainer.errors import ConfigError, NetworkError, StorageError
from pttrainer.runtime.io.outages import is_outage
from pttrainer.runtime.io.place import Versioned, no_fence

CALL_S = 10.0
"""Timeout of a call whose answer decides who may write: a slower call is retried, for half a minute."""


class Bucket:
    """`gs://`: a prefix of a Google Cloud Storage bucket. An emulator is used where STORAGE_EMULATOR_HOST names one."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.uri = f"gs://{bucket}/{prefix}".rstrip("/")
        self.prefix = prefix.strip("/")
        self.fence: Callable[[], None] = no_fence
        self._bucket = _gcs_bucket(bucket)

    def read(self, name: str) -> bytes | None:
        """Return the content, or None if the object does not exist."""
        with _service(f"{self.uri}/{name}", "read"):
            blob = self._bucket.get_blob(self._key(name))
            return None if blob is None else bytes(blob.download_as_bytes())

    def write(self, name: str, content: bytes) -> None:
        """Replace the object."""
        self.fence()
        with _service(f"{self.uri}/{name}", "written"):
            self._bucket.blob(self._key(name)).upload_from_string(content)

    def append(self, name: str, content: bytes) -> None:
        """Append to the object."""
        self.write(name, (self.read(name) or b"") + content)

    def remove(self, name: str) -> None:
        """Delete the object if it exists."""
        self.fence()
        with _service(f"{self.uri}/{name}", "removed"):
            blob = self._bucket.get_blob(self._key(name))
            if blob is not None:
                blob.delete()

    def names(self, under: str = "") -> list[str]:
        """Return the names of all objects below, sorted."""
        return sorted(self.blobs(under))

    def blobs(self, under: str = "") -> dict[str, Any]:
        """Return all objects below, by name."""
        start = len(self.prefix) + 1 if self.prefix else 0
        with _service(self.uri, "listed"):
            return {blob.name[start:]: blob for blob in self._bucket.list_blobs(prefix=self._below(under))}

    def blob(self, name: str) -> Any:
        """Return one object, or None if it does not exist."""
        with _service(f"{self.uri}/{name}", "read"):
            return self._bucket.get_blob(self._key(name))

    def upload(self, name: str, path: Path) -> None:
        """Upload a local file in parts, checked by the service."""
        self.fence()
        with _service(f"{self.uri}/{name}", "written"):
            self._bucket.blob(self._key(name)).upload_from_filename(str(path))

    def read_versioned(self, name: str) -> Versioned:
        """Return the content and its generation."""
        from google.api_core.exceptions import NotFound

        with _service(f"{self.uri}/{name}", "read"):
            blob = self._bucket.blob(self._key(name))
            try:
                content = bytes(blob.download_as_bytes(timeout=CALL_S, retry=_retry_policy()))
            except NotFound:
                return Versioned(None, 0)
            return Versioned(content, int(blob.generation))

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        """Replace the object if it still has this generation; return the new one, or None."""
        from google.api_core.exceptions import PreconditionFailed

        with _service(f"{self.uri}/{name}", "written"):
            blob = self._bucket.blob(self._key(name))
            try:
                blob.upload_from_string(content, if_generation_match=generation, timeout=CALL_S, retry=_retry_policy())
            except PreconditionFailed:
                return None
            return int(blob.generation)

    def _below(self, under: str) -> str:
        """Return the prefix of a directory's objects: `a/` rather than `a`, which would also match `a-b/c`."""
        key = self._key(under)
        return f"{key}/" if key else ""

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self.prefix, name) if part)


def _retry_policy() -> Any:
    """Return a policy of short retry intervals: a process that was cut off should soon learn what happened."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(30.0).with_delay(initial=0.5, maximum=4.0, multiplier=2.0)


@contextmanager
def _service(uri: str, done: str) -> Iterator[None]:
    """Turn Google's errors into StorageError: what could not be `done` to `uri`, and why."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.resumable_media import InvalidResponse
    from requests.exceptions import RequestException

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, InvalidResponse, RequestException) as error:
        raised = NetworkError if is_outage(error) else StorageError
        raise raised(f"{uri}: cannot be {done}: {_service_message(error)}") from error


def _service_message(error: Exception) -> str:
    """Return the service's own message, without the request and the document around it."""
    text = str(error).strip() or type(error).__name__
    match = re.search(r'"message": ?"([^"]+)"', text)
    return match[1] if match else text


def _gcs_bucket(name: str) -> Any:
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage
    except ImportError as error:
        raise ConfigError(
            "gs://: google-cloud-storage is not installed; hint: pip install 'posttrain[trainer]'"
        ) from error
    if "STORAGE_EMULATOR_HOST" in os.environ:
        from google.auth.credentials import AnonymousCredentials

        return storage.Client(credentials=AnonymousCredentials(), project="emulated").bucket(name)
    try:
        return storage.Client().bucket(name)
    except GoogleAuthError as error:
        raise ConfigError(
            f"gs://{name}: no Google credentials: {error} hint: on this machine run "
            "`gcloud auth application-default login`; on GKE give spec.serviceAccountName access to the bucket"
        ) from error
    except OSError as error:  # the client asks for a project, which a bucket does not need
        raise ConfigError(f"gs://{name}: {error}; hint: set GOOGLE_CLOUD_PROJECT") from error
