"""What a reservation has, and has left: one GET of the Compute API, where the operator may ask it.

Three fields of one kind are wanted, so this speaks REST over google-auth's session instead of google-cloud-compute's
client for everything there is. A reservation of VMs counts instances, one of a TPU family counts hosts, a block or
sub-block its own; each is a VM with all chips of its host. Whatever else the answer is (not permitted, not there, a
kind that is not counted, no answer), nobody knows, and the job asks GKE as if there were no such API.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from google.auth.exceptions import GoogleAuthError
from requests import RequestException, Session

from ptkube.resources import Manifest
from ptoperator.capacity.cloud import Reservation
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

GOOGLES = "https://compute.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/compute.readonly"
_REFUSED_S = 600.0
"""A refusal is believed for this long: rights may be given while the operator runs."""


class Reservations:
    """Safe to share between threads. One GET per reservation and poll serves all jobs."""

    def __init__(
        self, settings: Settings, session: Session | None = None, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._base = settings.compute_endpoint or GOOGLES
        self._session = session or connect(settings.compute_endpoint)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, Reservation | None]] = {}
        self._refused: dict[str, float] = {}

    def __call__(self, name: str, zone: str) -> Reservation | None:
        """A reservation in a zone, as it was half a poll ago or less; None where nobody can tell.

        name: as spec.capacity has it: a name, or a path that may name project, block and sub-block.
        """
        if not zone:
            return None
        with self._lock:
            at, found = self._known.get((name, zone), (None, None))
            if at is not None and self._seconds() - at < self._settings.cloud_poll_seconds / 2:
                return found
            found = self._ask(name, zone, found)
            self._known[name, zone] = (self._seconds(), found)
            return found

    def _ask(self, name: str, zone: str, before: Reservation | None) -> Reservation | None:
        """before: as it was when it was asked last; that counts while the API does not answer."""
        project, path = _split(name, self._settings.gke_project)
        until = self._refused.get(project)
        if until is not None and self._seconds() < until:
            return None
        url = f"{self._base}/compute/v1/projects/{project}/zones/{quote(zone, safe='')}/{path}"
        try:
            answer = self._session.get(url, timeout=self._settings.cloud_timeout_seconds)
        except (RequestException, GoogleAuthError) as error:
            logger.debug("reservation %s cannot be asked for: %s", name, error)
            return before
        if answer.status_code in (401, 403):
            self._refuse(project, answer.status_code)
            return None
        if answer.status_code != 200:
            logger.debug("reservation %s in %s: HTTP %s", name, zone, answer.status_code)
            return None if answer.status_code == 404 else before
        try:
            counts = _counts(answer.json())
        except ValueError:
            return before
        return Reservation(name, zone, *counts) if counts else None

    def _refuse(self, project: str, code: int) -> None:
        """Said once; asked again now and then."""
        if project not in self._refused:
            logger.warning(
                "the Compute API of project %s does not tell what reservations have left (HTTP %s), so they are tried "
                "unasked; hint: grant compute.reservations.get (docs/guides/gke.md)", project, code,
            )  # fmt: skip
        self._refused[project] = self._seconds() + _REFUSED_S


def reader(settings: Settings) -> Callable[[str, str], Reservation | None]:
    """Who tells of reservations: nobody, where GKE is a server of tests and no Compute API is named."""
    if settings.gke_endpoint.startswith("http://") and not settings.compute_endpoint:
        return lambda name, zone: None
    return Reservations(settings)


def connect(endpoint: str) -> Session:
    """A session with Application Default Credentials. Only `http://…`, a server of tests, gets none."""
    if endpoint.startswith("http://"):
        return Session()
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(scopes=[_SCOPE])
    session: Session = AuthorizedSession(credentials)
    return session


def _split(name: str, project: str) -> tuple[str, str]:
    """The project, and the path from `reservations/` on."""
    parts = name.strip("/").split("/")
    if parts[0] == "projects" and len(parts) > 2:
        project, parts = parts[1], parts[2:]
    if parts[0] == "zones" and len(parts) > 2:
        parts = parts[2:]
    if parts[0] != "reservations":
        parts = ["reservations", *parts]
    return quote(project, safe=":"), "/".join(quote(part, safe="") for part in parts)


def _counts(found: Manifest) -> tuple[int, int] | None:
    """VMs altogether and in use: of a block or sub-block, of instances, or of hosts of a TPU family."""
    found = found.get("resource") or found
    for holder, total, used in (
        (found, "count", "inUseCount"),
        (found.get("specificReservation") or {}, "count", "inUseCount"),
        (found.get("aggregateReservation") or {}, "hostCount", "inUseHostCount"),
    ):
        if holder.get(total) is not None:
            return _number(holder[total]), _number(holder.get(used))
    return None


def _number(value: Any) -> int:
    """64-bit numbers are text in Google's JSON; 0 is left out."""
    return int(value or 0)
