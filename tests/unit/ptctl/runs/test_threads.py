"""What a library's caller does that a command line never does: read in a thread, and stop reading."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.unit.ptctl.runs.test_logs import pod

from ptctl.jobs.view import view
from ptctl.runs.logs.log_stream import followed
from ptctl.ui import interrupts
from ptkube.resources import PODS, POSTTRAINJOBS


def test_a_follower_that_stops_ends_the_threads_that_read_for_it(kube: Any, make_job: Callable[..., Any]) -> None:
    def endless(*_: Any, **__: Any) -> Iterator[str]:
        while True:
            yield "line"
            time.sleep(0.01)

    job = view(kube.put(POSTTRAINJOBS, make_job("a")))
    kube.put(PODS, pod("p0", hosts=1))
    kube.pod_logs = endless
    entries = followed(kube, job)
    assert next(entries).text == "line"
    (reader,) = [thread for thread in threading.enumerate() if thread.name == "logs of rank 0"]
    entries.close()
    reader.join(30)
    assert not reader.is_alive()


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    handlers: list[Any] = []

    def work() -> None:
        with interrupts.handled(interrupts.raise_once, signal.SIGTERM):
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
