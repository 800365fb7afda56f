"""The Compute API as far as clusters need it, and the caller's permissions: by REST over google-auth's session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptctl.cluster.cloud.cloud_errors import CloudError, MissingInCloudError
from ptctl.cluster.cloud.settings import CloudSettings
from ptkube.resources import Manifest
from ptoperator.capacity.gke.reservations import GOOGLES

_RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
_TIMEOUT_S = 30.0
_CODES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS"}


class Compute:
    """One session. connect: makes it at the first request, for most clusters need none."""

    def __init__(self, base: str, connect: Callable[[], Any]) -> None:
        self._base = base or GOOGLES
        self._resource_manager = base or _RESOURCE_MANAGER
        self._connect = connect
        self._session: Any = None

    def has(self, collection: str, name: str) -> bool:
        """Return True if a collection has an entry of this name."""
        try:
            self.request("GET", f"{collection}/{name}")
        except MissingInCloudError:
            return False
        return True

    def request(self, method: str, path: str, body: Manifest | None = None) -> Manifest:
        """Send a request to the Compute API; return its answer. Raises CloudError."""
        return self._call(method, f"{self._base}/compute/v1/{path}", body)

    def granted(self, project: str, permissions: Sequence[str]) -> list[str]:
        """Return those of the permissions that the caller has in the project, by the Resource Manager API."""
        url = f"{self._resource_manager}/v1/projects/{project}:testIamPermissions"
        return list(self._call("POST", url, {"permissions": list(permissions)}).get("permissions") or [])

    def _call(self, method: str, url: str, body: Manifest | None) -> Manifest:
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        self._session = self._session or self._connect()
        try:
            answer = self._session.request(method, url, json=body, timeout=_TIMEOUT_S)
        except (RequestException, GoogleAuthError) as error:
            raise CloudError("UNAVAILABLE", f"Google does not answer: {error}", is_transient=True) from error
        if answer.status_code >= 400:
            raise _refusal(answer)
        parsed: Manifest = answer.json() if answer.content else {}
        return parsed


def open_compute(settings: CloudSettings) -> Compute:
    """Return the Compute API of the settings."""

    def connect() -> Any:
        from requests import Session

        if settings.compute_endpoint.startswith("http://"):
            return Session()
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(settings.credentials())

    return Compute(settings.compute_endpoint, connect)


def _refusal(answer: Any) -> CloudError:
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"Google answers HTTP {answer.status_code}"
    code = _CODES.get(answer.status_code, "UNAVAILABLE" if answer.status_code >= 500 else "INVALID_ARGUMENT")
    if code == "NOT_FOUND":
        return MissingInCloudError(code, message)
    is_new = "is not ready" in message  # a network, when its subnets are asked for at once
    is_transient = answer.status_code in (409, 429) or answer.status_code >= 500 or is_new
    hint = "your account needs roles/compute.admin in this project" if code == "PERMISSION_DENIED" else ""
    return CloudError(code, message, hint, is_transient=is_transient)
