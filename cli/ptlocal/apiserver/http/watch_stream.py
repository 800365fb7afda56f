"""Watches over HTTP: one JSON line per event, bookmarks, and an end after timeoutSeconds.

A watch without a resourceVersion (or with "0") starts with all existing objects as ADDED events. Bookmarks come every
30 s and before the end, so that a client can resume even after an hour without events.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from ptlocal.apiserver.backend import Cluster
from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.http.routes import Target
from ptlocal.apiserver.output.representations import Format
from ptlocal.apiserver.storage import read, selectors, watchers
from ptlocal.apiserver.storage.store import encode
from ptlocal.apiserver.storage.watchers import WatchEvent
from ptlocal.apiserver.write_options import flag, whole_number

BOOKMARK_S = 30.0
_DEFAULT_TIMEOUT_S = (1800, 3600)
_BATCH_BYTES = 256 * 1024


async def watch(cluster: Cluster, request: web.Request, target: Target, form: Format) -> web.StreamResponse:
    """Stream a watch until it times out, ends, or the client goes away."""
    query = request.query
    kind = target.kind
    selector = selectors.parse(kind, query.get("labelSelector"), query.get("fieldSelector"))
    timeout_s = whole_number(query, "timeoutSeconds") or random.randint(*_DEFAULT_TIMEOUT_S)
    sends_initial = flag(query, "sendInitialEvents")
    since = whole_number(query, "resourceVersion") or 0
    first = list(_first(cluster, target, selector, since, sends_initial))
    revision = cluster.store.revision
    subscription = cluster.hub.subscribe(kind.storage_key, target.namespace, selector)
    stream = _Stream(form, revision)
    try:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for part in stream.batches(first):
            await response.write(part)
        if sends_initial:
            await response.write(stream.bookmark(initial_end=True))
        await _live(cluster, response, subscription, stream, timeout_s, flag(query, "allowWatchBookmarks"))
        await response.write_eof()
    finally:
        cluster.hub.unsubscribe(kind.storage_key, subscription)
    return response


def _first(
    cluster: Cluster, target: Target, selector: selectors.Selector, since: int, sends_initial: bool
) -> Iterator[WatchEvent]:
    """Return the first events; raise before anything is sent, so that errors have their status code."""
    store, kind = cluster.store, target.kind
    if since and not sends_initial:
        yield from watchers.replay(store, kind.storage_key, target.namespace, selector, since)
        return
    if since > store.revision:
        raise watchers.too_new(since, store.revision)
    for row in read.matching(store, kind, target.namespace, selector):
        yield WatchEvent("ADDED", row.rv, row.body)


class _Stream:
    """Formats events as lines, and tracks the resourceVersion up to which the client has all events."""

    def __init__(self, form: Format, revision: int) -> None:
        self._form = form
        self.revision = revision

    def line(self, event: WatchEvent) -> bytes:
        """Return the line of one event."""
        return b'{"type":"%s","object":%s}\n' % (event.type.encode(), self._form.watched(event.body).rstrip())

    def batches(self, events: list[WatchEvent]) -> Iterator[bytes]:
        """Yield the lines of many events in chunks."""
        batch: list[bytes] = []
        size = 0
        for event in events:
            batch.append(self.line(event))
            size += len(batch[-1])
            if size > _BATCH_BYTES:
                yield b"".join(batch)
                batch, size = [], 0
        if batch:
            yield b"".join(batch)

    def bookmark(self, initial_end: bool = False) -> bytes:
        """Return the line of a bookmark."""
        meta: dict[str, Any] = {"resourceVersion": str(self.revision)}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return b'{"type":"BOOKMARK","object":%s}\n' % self._form.bookmark(meta).rstrip()


async def _live(
    cluster: Cluster,
    response: web.StreamResponse,
    subscription: watchers.Subscription,
    stream: _Stream,
    timeout_s: float,
    bookmarks: bool,
) -> None:
    loop = asyncio.get_running_loop()
    end, next_bookmark = loop.time() + timeout_s, loop.time() + BOOKMARK_S
    while (left_s := end - loop.time()) > 0:
        wait_s = min(left_s, next_bookmark - loop.time()) if bookmarks else left_s
        events, is_over = await _next(subscription, max(wait_s, 0.0))
        for part in stream.batches(events):
            await response.write(part)
        if is_over:
            if is_over == "lagging":
                await response.write(_lagging())
            return
        if subscription.queue.empty():
            stream.revision = cluster.store.revision
        if bookmarks and loop.time() >= next_bookmark and subscription.queue.empty():
            await response.write(stream.bookmark())
            next_bookmark = loop.time() + BOOKMARK_S
    if bookmarks and subscription.queue.empty():
        await response.write(stream.bookmark())


async def _next(subscription: watchers.Subscription, wait_s: float) -> tuple[list[WatchEvent], str]:
    """Return the available events after at most `wait_s`, and why the subscription ended ("" while it is active)."""
    queue, events = subscription.queue, list[WatchEvent]()
    try:  # `wait_for` without time left takes nothing, and a bookmark that is due leaves none
        item = await asyncio.wait_for(queue.get(), wait_s) if queue.empty() else queue.get_nowait()
    except TimeoutError:
        return [], ""
    while item is not None:
        events.append(item)
        if queue.empty():
            return events, ""
        item = queue.get_nowait()
    return events, subscription.end_reason or "ended"


def _lagging() -> bytes:
    error = StatusError(410, "Expired", "too many changes were waiting for this watch; list again")
    return b'{"type":"ERROR","object":%s}\n' % encode(error.body())
