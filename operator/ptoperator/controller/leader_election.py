"""Leader election: one replica holds and renews a Lease, the others wait until it expires.

The leader works until a deadline well before the moment at which another may take the lease. Writes check that deadline
(`audited_client`), so a replica that is cut off or paused sends nothing after it. Clocks are not compared: a lease has
expired when this process has seen it unchanged for its whole duration.

Left out: fencing of a write that is on its way when the deadline passes. Every write is safe to arrive late: it names
the version or uid it is about, or creates an object whose name exists once.
"""

import logging
import threading
import time
from collections.abc import Callable

from ptkube import timestamps
from ptkube.errors import ApiError, NotFound
from ptkube.resources import LEASES, Manifest
from ptoperator.kube.audited_client import Client

logger = logging.getLogger(__name__)

LEASE = "posttrain-operator"
DURATION_S = 15.0
"""A lease that is not renewed for this long may be taken: the time a hand-over takes after a crash."""
DEADLINE_S = 10.0
"""Who holds it works for this long after a renewal began."""
RENEW_S = 3.0
RETRY_S = 1.0


class NotLeading(ApiError):
    """Another replica leads, or the lease could not be renewed in time: nothing may be written."""

    def __init__(self) -> None:
        super().__init__(0, "NotLeading", "this replica does not hold the lease")


class Leadership:
    """Takes and renews the lease.

    on_change(leads) is called from the thread that `start` creates, and with True again after another replica's term,
    even if this one never heard that it had lost the lease.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        on_change: Callable[[bool], None] = lambda leads: None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._namespace, self._identity = client, namespace, identity
        self._on_change, self._seconds = on_change, seconds
        self._until = float("-inf")
        self._last_record: tuple[object, ...] = ()
        self._unchanged_since = 0.0
        self._led = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def leads(self) -> bool:
        """Return True if this replica may write now."""
        return self._seconds() < self._until

    def check(self) -> None:
        """Raise NotLeading unless this replica leads."""
        if not self.leads:
            raise NotLeading

    def start(self) -> None:
        """Start the thread that takes and renews the lease."""
        self._thread = threading.Thread(target=self._keep_trying, name="leadership", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and release the lease so that another replica can begin at once."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=DEADLINE_S)
        was_leading, self._until = self.leads, float("-inf")
        if was_leading:
            self._release()

    def try_once(self) -> bool:
        """Take or renew the lease if possible. Return True if this replica leads."""
        began = self._seconds()
        try:
            if self._take(began):
                self._until = began + DEADLINE_S
        except ApiError as error:  # Conflict: somebody was faster
            logger.debug("lease %s/%s: %s", self._namespace, LEASE, error)
        self._notify()
        return self.leads

    def _take(self, now: float) -> bool:
        try:
            lease = self._client.get(LEASES, LEASE, self._namespace)
        except NotFound:
            meta = {"name": LEASE, "namespace": self._namespace}
            self._client.create(LEASES, {"metadata": meta, "spec": self._spec({})})
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        mark = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if mark != self._last_record:
            self._last_record, self._unchanged_since = mark, now
        if holder not in ("", self._identity) and now - self._unchanged_since < DURATION_S:
            return False
        self._client.replace(LEASES, {**lease, "spec": self._spec(spec)})
        self._led = self._led and holder == self._identity  # after another's term a new one begins
        return True

    def _spec(self, old: Manifest) -> Manifest:
        now = timestamps.to_micro_text(timestamps.utc_now())
        is_new = old.get("holderIdentity") != self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION_S),
            "acquireTime": now if is_new else old.get("acquireTime") or now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (1 if is_new and old else 0),
        }

    def _release(self) -> None:
        try:
            lease = self._client.get(LEASES, LEASE, self._namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                self._client.replace(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except ApiError as error:
            logger.debug("the lease was not released: %s", error)

    def _notify(self) -> None:
        if self.leads != self._led:
            self._led = self.leads
            logger.info("this replica %s", "leads" if self._led else "waits: it does not hold the lease")
            self._on_change(self._led)

    def _keep_trying(self) -> None:
        while not self._stopped.is_set():
            leads = self.try_once()
            self._stopped.wait(RENEW_S if leads else RETRY_S)
