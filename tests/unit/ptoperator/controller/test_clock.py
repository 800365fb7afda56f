"""Clocks that are wrong or jump: this machine's, and the one by which an earlier operator wrote its times."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes.client import Configuration
from tests.builders.operator.cloud_site import STOCKOUT, Site
from tests.builders.operator.job_steps import bring_up, status
from tests.builders.operator.world import NAMESPACE, Operator, World

from ptkube import timestamps
from ptkube.client import Kube
from ptkube.kubeconfig import Access
from ptkube.resources import POSTTRAINJOBS
from ptoperator.app import Application
from ptoperator.observe.cache import JobCache
from ptoperator.settings import Settings

HOURS = timedelta(hours=3)


@pytest.fixture
def server() -> Iterator[str]:
    """The address of an API server that lives in 2031."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", "Thu, 01 May 2031 12:00:00 GMT")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    serving.server_close()


def test_deadlines_are_compared_with_the_api_servers_time_not_with_this_machines(server: str) -> None:
    """What is compared was written there; and this machine's clock may jump while a job's hours run."""
    app = Application(Kube(Access(Configuration(server), "nowhere")), Settings())
    app.kube.request("GET", "/version")
    assert abs(app.reconciler.now() - datetime(2031, 5, 1, 12, tzinfo=UTC)) < timedelta(seconds=30)


def test_progress_is_told_although_an_earlier_operators_clock_was_ahead(operator: Operator, world: World) -> None:
    bring_up(operator)
    for step in (5, 7):
        world.tick(11)
        world.progress(step)
        if step == 7:
            world.api.now -= HOURS
        operator.news.add((NAMESPACE, "llama"))
        operator.work()
        assert status(world).progress.step == step


def test_capacity_is_tried_again_although_an_earlier_operators_clock_was_ahead(site: Site) -> None:
    site.faults["other"] = STOCKOUT
    site.create()
    site.run_until(lambda: site.status().capacity.retry_after)
    site.faults.clear()
    later = timestamps.to_text(site.world.api.now + HOURS)
    site.world.api.patch(POSTTRAINJOBS, "llama", NAMESPACE, {"status": {"capacity": {"retryAfter": later}}})
    site.run_until(lambda: site.status().capacity.retry_after is None, limit_s=630)


def test_what_was_read_in_the_future_is_read_again() -> None:
    cache, key, now = JobCache(), (NAMESPACE, "one"), datetime(2026, 1, 1, tzinfo=UTC)
    cache.note_read(key, frozenset({POSTTRAINJOBS}), now)
    cache.note_all_read(now)
    assert cache.kinds_due(key, now, 600) == frozenset()
    assert cache.just_read(key, now - HOURS) == frozenset()
    assert not cache.are_turns_known(now - HOURS, 600)
    assert cache.kinds_due(key, now - HOURS, 600)
