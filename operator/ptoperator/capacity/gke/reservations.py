"""Read the size and use of a reservation: one GET of the Compute API, if the operator is allowed to.

Only three fields of one kind are needed, so this uses REST over google-auth's session instead of google-cloud-compute's
client. A reservation of VMs counts instances, one of a TPU family counts hosts, a block or sub-block its own; each is a
VM with all chips of its host. For any other reply (forbidden, not found, a kind that is not counted, no answer) the job
asks GKE as if there were no such API.
"""

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
    """Reads reservations. Safe to share between threads. One GET per reservation and poll serves all jobs."""

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
        """Return a reservation, at most half a poll old; None if it cannot be read.

        name: as in spec.capacity: a name, or a path that may contain project, block and sub-block.
        """
        if not zone:
            return None
        with self._lock:
            at, reservation = self._known.get((name, zone), (None, None))
            if at is not None and self._seconds() - at < self._settings.cloud_poll_seconds / 2:
                return reservation
            reservation = self._ask(name, zone, reservation)
            self._known[name, zone] = (self._seconds(), reservation)
            return reservation

    def _ask(self, name: str, zone: str, before: Reservation | None) -> Reservation | None:
        """Fetch a reservation. before: its last value, which stays valid while the API does not answer."""
        project, path = split(name, self._settings.gke_project)
        until = self._refused.get(project)
        if until is not None and self._seconds() < until:
            return None
        url = f"{self._base}/compute/v1/projects/{project}/zones/{quote(zone, safe='')}/{path}"
        try:
            answer = self._session.get(url, timeout=self._settings.cloud_timeout_seconds)
        except (RequestException, GoogleAuthError) as error:
            logger.debug("reservation %s cannot be read: %s", name, error)
            return before
        if answer.status_code in (401, 403):
            self._refuse(project, answer.status_code)
            return None
        if answer.status_code != 200:
            logger.debug("reservation %s in %s: HTTP %s", name, zone, answer.status_code)
            return None if answer.status_code == 404 else before
        try:
            numbers = counts(answer.json())
        except ValueError:
            return before
        return Reservation(name, zone, *numbers) if numbers else None

    def _refuse(self, project: str, code: int) -> None:
        """Warn once per project, and skip it for a while."""
        if project not in self._refused:
            logger.warning(
                "the Compute API of project %s does not report the free capacity of reservations (HTTP %s), so they "
                "are tried without checking it; hint: grant compute.reservations.get (docs/guides/gke.md)",
                project, code,
            )  # fmt: skip
        self._refused[project] = self._seconds() + _REFUSED_S


def reader(settings: Settings) -> Callable[[str, str], Reservation | None]:
    """Return a reader of reservations; it reads none if GKE is a test server and no Compute API is set."""
    if settings.gke_endpoint.startswith("http://") and not settings.compute_endpoint:
        return lambda name, zone: None
    return Reservations(settings)


def connect(endpoint: str) -> Session:
    """Return a session with Application Default Credentials; an `http://…` endpoint, a test server, gets none."""
    if endpoint.startswith("http://"):
        return Session()
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(scopes=[_SCOPE])
    session: Session = AuthorizedSession(credentials)
    return session


def split(name: str, project: str) -> tuple[str, str]:
    """Split a reservation's name or path: return its project, and the path from `reservations/` on."""
    parts = name.strip("/").split("/")
    if parts[0] == "projects" and len(parts) > 2:
        project, parts = parts[1], parts[2:]
    if parts[0] == "zones" and len(parts) > 2:
        parts = parts[2:]
    if parts[0] != "reservations":
        parts = ["reservations", *parts]
    return quote(project, safe=":"), "/".join(quote(part, safe="") for part in parts)


def counts(reservation: Manifest) -> tuple[int, int] | None:
    """Return all VMs and the used ones: of a block or sub-block, of instances, or of hosts of a TPU family."""
    reservation = reservation.get("resource") or reservation
    for holder, total, used in (
        (reservation, "count", "inUseCount"),
        (reservation.get("specificReservation") or {}, "count", "inUseCount"),
        (reservation.get("aggregateReservation") or {}, "hostCount", "inUseHostCount"),
    ):
        if holder.get(total) is not None:
            return _number(holder[total]), _number(holder.get(used))
    return None


def _number(value: Any) -> int:
    """Parse a 64-bit number, which is text in Google's JSON and absent if 0."""
    return int(value or 0)
