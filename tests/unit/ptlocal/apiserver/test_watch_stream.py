"""What a watch sends, and when."""

from ptlocal.apiserver.http.watch_stream import _next
from ptlocal.apiserver.storage.selectors import Selector
from ptlocal.apiserver.storage.watchers import Subscription, WatchEvent


async def test_events_that_wait_are_sent_also_when_a_bookmark_is_due() -> None:
    """A bookmark follows the events before it: a watch that takes none of them would send nothing ever again."""
    subscription = Subscription(None, Selector())
    first, second = WatchEvent("ADDED", 7, b"{}"), WatchEvent("MODIFIED", 8, b"{}")
    subscription.queue.put_nowait(first)
    subscription.queue.put_nowait(second)
    assert await _next(subscription, 0.0) == ([first, second], "")
    assert await _next(subscription, 0.0) == ([], "")
