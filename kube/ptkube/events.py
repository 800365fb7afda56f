"""Kubernetes Events: what a controller did, where `kubectl describe` looks for it.

Written in the background, because they are commentary and must not delay what they comment on; one that cannot be
written is dropped. Repeats of one sentence about one object raise the count of one Event instead of filling the list.
"""

import hashlib
import logging
import queue
import threading

from ptkube import timestamps
from ptkube.client import AlreadyExists, ApiError, Kube, NotFound
from ptkube.resources import EVENTS, Manifest

log = logging.getLogger(__name__)


class EventRecorder:
    """Records Events in the background, as one component."""

    def __init__(self, kube: Kube, component: str) -> None:
        self._kube = kube
        self._component = component
        self._counts: dict[str, int] = {}
        self._waiting: queue.SimpleQueue[Manifest] = queue.SimpleQueue()
        threading.Thread(target=self._write_all, name=f"events-{component}", daemon=True).start()

    def record(self, about: Manifest, kind: str, reason: str, message: str) -> None:
        """Write an Event about an object, soon. kind: Normal or Warning."""
        self._waiting.put(event_for(about, kind, reason, message, self._component, now=timestamps.timestamp()))

    def _write_all(self) -> None:
        while True:
            event = self._waiting.get()
            try:
                self._write(event)
            except ApiError as error:
                self._counts.pop(event["metadata"]["name"], None)
                log.debug("event %s not written: %s", event["metadata"]["name"], error)

    def _write(self, event: Manifest) -> None:
        name = event["metadata"]["name"]
        self._counts[name] = self._counts.get(name, 0) + 1
        if self._counts[name] == 1:
            try:
                self._kube.create(EVENTS, event)
                return
            except AlreadyExists:
                pass  # said before a restart of this process
        patch = {"count": self._counts[name], "lastTimestamp": event["lastTimestamp"]}
        try:
            self._kube.patch(EVENTS, name, event["metadata"]["namespace"], patch)
        except NotFound:  # the server has forgotten it, as it does after an hour
            self._kube.create(EVENTS, event)


def event_for(about: Manifest, kind: str, reason: str, message: str, component: str, now: str) -> Manifest:
    """Return the Event about an object; equal reports have equal names, so they can be counted."""
    meta = about["metadata"]
    digest = hashlib.sha256(f"{meta.get('uid')}/{kind}/{reason}/{message}".encode()).hexdigest()[:16]
    namespace = meta.get("namespace") or "default"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name'][:230]}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": meta["name"],
            "namespace": namespace,
            "uid": meta.get("uid"),
            "resourceVersion": meta.get("resourceVersion"),
        },
        "type": kind,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
