"""Watches: replay from the journal, then live changes, through a selector.

The one idea: what a watcher sees of a change depends on whether the object matched its selector before and after, so
an object that begins to match is ADDED and one that stops is DELETED, whatever really happened to it.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ptlocal.apiserver.errors import StatusError, expired
from ptlocal.apiserver.storage.selectors import Selector
from ptlocal.apiserver.storage.store import Change, Store, encode

QUEUE_LENGTH = 10_000  # a watcher this far behind is cut off and must list again


@dataclass(frozen=True)
class Seen:
    """A change as one watcher sees it."""

    type: str
    rv: int
    body: bytes


class Subscription:
    """One watch's queue; None in it says that the watch is over, and `end_reason` why.

    Whoever reads too slowly is cut off as lagging and lists again, so that the queue stays bounded.
    """

    def __init__(self, namespace: str | None, selector: Selector) -> None:
        self.queue: asyncio.Queue[Seen | None] = asyncio.Queue()
        self._namespace = namespace
        self._selector = selector
        self.end_reason = ""

    def offer(self, change: Change, store: Store) -> None:
        if self._namespace is not None and change.namespace != self._namespace:
            return
        if self.end_reason or (seen := see(change, self._selector, store)) is None:
            return
        if self.queue.qsize() >= QUEUE_LENGTH:
            self.end("lagging")
        else:
            self.queue.put_nowait(seen)

    def end(self, reason: str) -> None:
        self.end_reason = reason
        self.queue.put_nowait(None)


class Hub:
    """Hands every change to the subscriptions on its resource."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscriptions: dict[str, set[Subscription]] = defaultdict(set)
        store.subscribe(self._on_change)

    def subscribe(self, resource: str, namespace: str | None, selector: Selector) -> Subscription:
        subscription = Subscription(namespace, selector)
        self._subscriptions[resource].add(subscription)
        return subscription

    def unsubscribe(self, resource: str, subscription: Subscription) -> None:
        self._subscriptions[resource].discard(subscription)

    def end(self, resource: str) -> None:
        """End the watches on a resource that is no longer served or is served differently."""
        for subscription in self._subscriptions[resource]:
            subscription.end("ended")

    def end_all(self) -> None:
        for resource in list(self._subscriptions):
            self.end(resource)

    def _on_change(self, change: Change) -> None:
        for subscription in list(self._subscriptions[change.resource]):
            subscription.offer(change, self._store)


def replay(store: Store, resource: str, namespace: str | None, selector: Selector, since: int) -> Iterator[Seen]:
    """What happened after `since`; 410 where the journal no longer reaches back so far."""
    if since > store.revision:
        raise too_new(since, store.revision)
    if not store.can_replay_from(since):
        raise expired(f"too old resource version: {since} ({store.revision})")
    for change in store.changes_since(since, resource, namespace):
        seen = see(change, selector, store)
        if seen is not None:
            yield seen


def too_new(asked: int, current: int) -> StatusError:
    return StatusError(
        504,
        "Timeout",
        f"Too large resource version: {asked}, current: {current}",
        {
            "retryAfterSeconds": 1,
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        },
    )


def see(change: Change, selector: Selector, store: Store) -> Seen | None:
    matched = change.before is not None and selector.matches(change.before)
    if change.type == "DELETED":
        return Seen("DELETED", change.rv, change.body) if matched else None
    matches = selector.matches(change.now)
    if matches:
        return Seen("MODIFIED" if matched else "ADDED", change.rv, change.body)
    if not matched:
        return None
    old = change.old_body if change.old_body is not None else store.body_before(change)
    return Seen("DELETED", change.rv, _with_revision(old, change.rv))


def _with_revision(body: bytes, rv: int) -> bytes:
    obj = json.loads(body)
    obj["metadata"]["resourceVersion"] = str(rv)
    return encode(obj)
