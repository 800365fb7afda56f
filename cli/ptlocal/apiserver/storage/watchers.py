"""Watches: replay from the journal, then live changes, through a selector.

The one idea: a watcher's event depends on whether the object matched its selector before and after the change, so an
object that starts to match is ADDED and one that stops is DELETED, whatever the change was.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ptlocal.apiserver.errors import StatusError, expired
from ptlocal.apiserver.storage.selectors import Selector
from ptlocal.apiserver.storage.store import Change, Store, encode

QUEUE_LENGTH = 10_000  # a watcher this far behind is disconnected and must list again


@dataclass(frozen=True)
class WatchEvent:
    """A change as an event of one watch."""

    type: str
    rv: int
    body: bytes


class Subscription:
    """One watch's queue; None in it marks the end of the watch, and `end_reason` says why.

    A slow reader is disconnected as lagging and must list again, so that the queue stays bounded.
    """

    def __init__(self, namespace: str | None, selector: Selector) -> None:
        self.queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        self._namespace = namespace
        self._selector = selector
        self.end_reason = ""

    def offer(self, change: Change, store: Store) -> None:
        """Queue the change if it concerns this watch."""
        if self._namespace is not None and change.namespace != self._namespace:
            return
        if self.end_reason or (event := event_for(change, self._selector, store)) is None:
            return
        if self.queue.qsize() >= QUEUE_LENGTH:
            self.end("lagging")
        else:
            self.queue.put_nowait(event)

    def end(self, reason: str) -> None:
        """End the watch."""
        self.end_reason = reason
        self.queue.put_nowait(None)


class Hub:
    """Distributes every change to the subscriptions of its resource."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscriptions: dict[str, set[Subscription]] = defaultdict(set)
        store.subscribe(self._on_change)

    def subscribe(self, resource: str, namespace: str | None, selector: Selector) -> Subscription:
        """Start a subscription."""
        subscription = Subscription(namespace, selector)
        self._subscriptions[resource].add(subscription)
        return subscription

    def unsubscribe(self, resource: str, subscription: Subscription) -> None:
        """End a subscription."""
        self._subscriptions[resource].discard(subscription)

    def end(self, resource: str) -> None:
        """End the watches on a resource that is no longer served or is served differently."""
        for subscription in self._subscriptions[resource]:
            subscription.end("ended")

    def end_all(self) -> None:
        """End all watches."""
        for resource in list(self._subscriptions):
            self.end(resource)

    def _on_change(self, change: Change) -> None:
        for subscription in list(self._subscriptions[change.resource]):
            subscription.offer(change, self._store)


def replay(store: Store, resource: str, namespace: str | None, selector: Selector, since: int) -> Iterator[WatchEvent]:
    """Yield the events after `since`. Raises a 410 if the journal does not reach back that far."""
    if since > store.revision:
        raise too_new(since, store.revision)
    if not store.can_replay_from(since):
        raise expired(f"too old resource version: {since} ({store.revision})")
    for change in store.changes_since(since, resource, namespace):
        event = event_for(change, selector, store)
        if event is not None:
            yield event


def too_new(requested: int, current: int) -> StatusError:
    """Return the error for a resourceVersion in the future."""
    return StatusError(
        504,
        "Timeout",
        f"Too large resource version: {requested}, current: {current}",
        {
            "retryAfterSeconds": 1,
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        },
    )


def event_for(change: Change, selector: Selector, store: Store) -> WatchEvent | None:
    """Return the change as an event of a watch with this selector, or None."""
    matched = change.before is not None and selector.matches(change.before)
    if change.type == "DELETED":
        return WatchEvent("DELETED", change.rv, change.body) if matched else None
    matches = selector.matches(change.now)
    if matches:
        return WatchEvent("MODIFIED" if matched else "ADDED", change.rv, change.body)
    if not matched:
        return None
    old = change.old_body if change.old_body is not None else store.body_before(change)
    return WatchEvent("DELETED", change.rv, _with_revision(old, change.rv))


def _with_revision(body: bytes, rv: int) -> bytes:
    obj = json.loads(body)
    obj["metadata"]["resourceVersion"] = str(rv)
    return encode(obj)
