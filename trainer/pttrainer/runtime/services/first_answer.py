"""Waiting for the first answer of a service: its pods pull images and load weights while the trainer starts."""

import http.client
import itertools
import time
import urllib.error
from collections.abc import Callable

from pttrainer.errors import ServiceLost
from pttrainer.runtime import http_client
from pttrainer.runtime.services.replicas import Replicas

LIMIT_S = 1800.0
"""Longest wait, as for samplers: a pod waits for a node, and pulls its image there."""
LOOK_S, NOTE_S = 1.0, 60.0
"""Seconds between looks, and between lines for people."""
PATIENCE_S = 5.0
"""Seconds in which a replica that is up answers."""


def wait(name: str, field: str, replicas: Replicas, note: Callable[[str], None], alive: Callable[[], None]) -> int:
    """Return the first replica that answers; those before it are left out until they do. alive: called while waiting.

    Any answer counts, but that of a server which says that it is not ready. Raises ServiceLost.
    """
    began = last_note = time.monotonic()
    for turn in itertools.count():
        replica = turn % len(replicas.urls)
        reason = _missing(replicas.urls[replica])
        if reason is None:
            return replica
        replicas.lost(replica)
        now = time.monotonic()
        waited = f"service {name} has not answered for {now - began:.0f} s: {reason}"
        if now - began > LIMIT_S:
            raise ServiceLost(f"{field}: {waited}; hint: look at the log of the service's pods")
        if now - last_note >= NOTE_S:
            last_note = now
            note(f"waiting for {waited}")
        alive()
        if replica + 1 == len(replicas.urls):
            time.sleep(LOOK_S)
    raise AssertionError


def _missing(url: str) -> str | None:
    """Return why a replica is not up; None if it is."""
    try:
        with http_client.build_opener().open(f"{url}/health", timeout=PATIENCE_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{url}: {error.code} {error.reason}" if error.code >= 500 else None
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {getattr(error, 'reason', error)}"
