"""Kubernetes Events: what a controller did, where `kubectl describe` looks for it.

Repeats of one sentence about one object raise the count of one Event instead of filling the list. An Event that
cannot be written is dropped: it is commentary, never the state.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import UTC, datetime

from ptoperator.kube import AlreadyExists, ApiError, Kube
from ptoperator.resources import EVENTS, Manifest

log = logging.getLogger(__name__)


class EventRecorder:
    def __init__(self, kube: Kube, component: str) -> None:
        self._kube = kube
        self._component = component
        self._counts: dict[str, int] = {}

    def record(self, about: Manifest, kind: str, reason: str, message: str) -> None:
        """`kind` is Normal or Warning."""
        event = event_for(about, kind, reason, message, self._component, now=timestamp())
        name = event["metadata"]["name"]
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        try:
            if count == 1:
                try:
                    self._kube.create(EVENTS, event)
                    return
                except AlreadyExists:
                    pass  # said before a restart of this process
            patch = {"count": count, "lastTimestamp": event["lastTimestamp"]}
            self._kube.patch(EVENTS, name, event["metadata"]["namespace"], patch)
        except ApiError as error:
            self._counts.pop(name, None)
            log.debug("event %s about %s not written: %s", reason, about["metadata"].get("name"), error)


def event_for(about: Manifest, kind: str, reason: str, message: str, component: str, now: str) -> Manifest:
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


def timestamp() -> str:
    """Now, as the API writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(stamp: str, now: str) -> float:
    return (_parse(now) - _parse(stamp)).total_seconds()


def _parse(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00"))
