"""A sampler of two processes, here two threads: what the trainer asks of one, both do."""

import http.client
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.builders.trainer.message_store import MessageStore

from pttrainer.data.prompts import Question
from pttrainer.rollout.disaggregated.in_flight import remote_calls
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continuation
from pttrainer.rollout.disaggregated.in_flight.unfinished import Goal, PartialSample, UnfinishedGroup
from pttrainer.rollout.disaggregated.separate.client import Conflict, SamplerAway, SamplerClient
from pttrainer.rollout.disaggregated.separate.held_weights import Total, VersionMissing
from pttrainer.rollout.disaggregated.separate.sampler_group.follower import Follower
from pttrainer.rollout.disaggregated.separate.sampler_group.leader import INLINE_BYTES, SamplerGroup
from pttrainer.rollout.disaggregated.separate.sampler_group.work import Progress, SamplerWork
from pttrainer.rollout.disaggregated.separate.sampler_server import SamplerServer
from pttrainer.rollout.engine import Sampling
from pttrainer.runtime.distributed.leader_messages import LeaderMessages

TOKEN, LIMIT_S = "of this test", 60.0


class Work:
    """Notes what it is to do; a version that comes as a part of `lost` is refused."""

    def __init__(self, number: int) -> None:
        self.number, self.calls = number, list[tuple[str, bytes]]()
        self.weights = SimpleNamespace(versions=[], newest=None, has_static=False)
        self.weights.params = lambda name: f"params {name}"
        self._threads = ThreadPoolExecutor(1)

    def begin(self, body: bytes) -> None:
        self.calls.append(("begin", body))
        if json.loads(body)["base"] == "lost":
            raise VersionMissing("lost: not here")

    def tensors(self, body: bytes) -> None:
        self.calls.append(("tensors", body))

    def finish(self, body: bytes, total: Total) -> None:
        self.calls.append(("finish", total(np.array([self.number, 2**31], np.uint32)).tobytes()))

    def sample(self, action: Callable[[], Any]) -> Future[Any]:
        return self._threads.submit(action)

    def go_on(self, call: Continuation, params: Any, progress: Progress) -> list[bytes | memoryview]:
        self.calls.append((f"go on with {call.groups[0].samples[0].tokens} by {params}", b""))
        return remote_calls.encode_reply(remote_calls.added(call.groups, [0]))

    def forget(self) -> None:
        self.calls.append(("forget", b""))

    def close(self) -> None:
        self._threads.shutdown()


def when_up(client: SamplerClient) -> None:
    """Wait until the sampler takes requests."""
    for _ in range(int(LIMIT_S / 0.05)):
        try:
            client.refresh()
        except SamplerAway:
            threading.Event().wait(0.05)
        else:
            return
    client.refresh()


def test_both_processes_do_what_the_trainer_asks_in_one_order_and_end_together() -> None:
    store, works = MessageStore(), (Work(1), Work(2))
    group = SamplerGroup(LeaderMessages(store, part_bytes=1000, rank=0), 1)
    server = SamplerServer(cast(SamplerWork, works[0]), TOKEN, "shapes", 0, group)
    ends: list[BaseException] = []
    messages = LeaderMessages(store, part_bytes=1000, rank=1)
    follower = Follower(cast(SamplerWork, works[1]), messages, "127.0.0.1", TOKEN, ends.append)
    threads = [threading.Thread(target=each, daemon=True) for each in (server.serve, follower.follow)]
    for thread in threads:
        thread.start()
    group.greet(server.port)
    client = SamplerClient(f"127.0.0.1:{server.port}", TOKEN, "shapes", LIMIT_S)
    when_up(client)
    long = bytes(range(256)) * (INLINE_BYTES // 256 + 1)
    client.begin("a", None, ["a"])
    client.tensors([long])
    client.tensors([b"short"])
    client.finish("a", {})
    with pytest.raises(Conflict, match="not here"):
        client.begin("b", "lost", ["b"])
    group_in_flight = UnfinishedGroup(3, Question([1, 2], "", {}), [PartialSample([4, 5], [-1.0, -2.0], [0, 0])])
    call = Continuation("a", [group_in_flight], Sampling(8, 16), 0, Goal(1, frozenset()), 1)
    reply = client.generate(call, lambda: None)
    assert reply[1].tolist() == [4, 5]
    client.forget()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("POST", "/drain", headers={"Authorization": f"Bearer {TOKEN}", "Content-Length": "0"})
    assert connection.getresponse().status == 200
    connection.close()
    for thread in threads:
        thread.join(LIMIT_S)
    works[1].close()
    assert not any(thread.is_alive() for thread in threads)
    assert works[0].calls == works[1].calls
    assert [name for name, _ in works[0].calls] == [
        *("begin", "tensors", "tensors", "finish", "begin", "go on with [4, 5] by params a", "forget")
    ]
    assert works[0].calls[1][1] == long
    assert np.frombuffer(works[0].calls[3][1], np.uint32).tolist() == [3, 0]
    assert store.values == {}


def test_a_sampler_takes_no_requests_before_all_its_processes_have_come_nor_once_one_is_gone() -> None:
    group, lost = SamplerGroup(None, 1), threading.Event()
    server = SamplerServer(cast(SamplerWork, Work(0)), TOKEN, "shapes", 0, group)
    group.when_lost(lost.set)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    client = SamplerClient(f"127.0.0.1:{server.port}", TOKEN, "shapes", LIMIT_S)
    with pytest.raises(SamplerAway, match="503"):
        client.refresh()
    other = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    other.request("GET", "/member", headers={"Authorization": f"Bearer {TOKEN}"})
    response = other.getresponse()
    when_up(client)
    assert not lost.is_set()
    response.close()
    other.close()
    assert lost.wait(LIMIT_S)
    with pytest.raises(SamplerAway, match="503"):
        client.refresh()
    server.drain()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
