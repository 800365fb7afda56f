"""Two replicas and one lease: who works, when the other begins, and that never both do."""

import random

import pytest
from tests.builders.operator.world import Api

from ptkube.errors import Unreachable
from ptkube.resources import EVENTS, LEASES, Manifest, Resource
from ptoperator.controller.leader_election import DURATION_S, LEASE, RENEW_S, RETRY_S, Leadership, NotLeading
from ptoperator.kube.audited_client import Client

SYSTEM = "posttrain-system"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A replica's way to the API server, which may be cut."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.is_cut = False

    def get(self, r: Resource, name: str, namespace: str | None = None) -> Manifest:
        self._use()
        return self._api.get(r, name, namespace)

    def create(self, r: Resource, body: Manifest) -> Manifest:
        self._use()
        return self._api.create(r, body)

    def replace(self, r: Resource, body: Manifest) -> Manifest:
        self._use()
        return self._api.replace(r, body)

    def _use(self) -> None:
        if self.is_cut:
            raise Unreachable(0, "Unreachable", "cut")


def replica(api: Api, name: str, clock: Clock) -> tuple[Leadership, Line]:
    line = Line(api)
    return Leadership(Client(line), SYSTEM, name, seconds=clock), line  # type: ignore[arg-type]


def test_one_of_two_works_and_the_other_waits() -> None:
    api, clock = Api(), Clock()
    (a, _), (b, _) = replica(api, "a", clock), replica(api, "b", clock)
    assert a.try_once()
    for _ in range(20):
        clock.now += RENEW_S
        assert a.try_once()
        assert not b.try_once()
    spec = api.get(LEASES, LEASE, SYSTEM)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("a", 15)


def test_a_replica_that_slept_while_another_led_takes_over_anew() -> None:
    """It leads before and after, and yet what it knows of turns in lines is no longer all."""
    api, clock = Api(), Clock()
    (a, _), (b, _) = replica(api, "a", clock), replica(api, "b", clock)
    terms: list[bool] = []
    a._on_change = terms.append
    a.try_once()
    b.try_once()
    clock.now += DURATION_S
    assert b.try_once()
    b.stop()
    assert a.try_once()
    assert terms == [True, True]


def test_a_replica_that_died_is_followed_within_twenty_seconds() -> None:
    api, clock = Api(), Clock()
    (a, _), (b, _) = replica(api, "a", clock), replica(api, "b", clock)
    a.try_once()
    b.try_once()
    died = clock.now
    while not b.try_once():
        clock.now += RETRY_S
    assert clock.now - died <= DURATION_S + RETRY_S < 20
    assert not a.leads
    assert api.get(LEASES, LEASE, SYSTEM)["spec"]["leaseTransitions"] == 1


def test_a_replica_that_stops_hands_over_at_once() -> None:
    api, clock = Api(), Clock()
    (a, _), (b, _) = replica(api, "a", clock), replica(api, "b", clock)
    a.try_once()
    a.stop()
    assert not a.leads
    assert b.try_once()


def test_a_replica_that_is_cut_off_writes_nothing_before_another_may() -> None:
    api, clock = Api(), Clock()
    (a, line), (b, _) = replica(api, "a", clock), replica(api, "b", clock)
    a.try_once()
    b.try_once()
    line.is_cut = True
    while not b.try_once():
        clock.now += RETRY_S
        a.try_once()
    assert not a.leads
    writer = Client(api, check=a.check)
    with pytest.raises(NotLeading):
        writer.create(EVENTS, {"metadata": {"name": "e", "namespace": "n"}})
    assert api.kinds("Event") == []


@pytest.mark.parametrize("seed", range(20))
def test_never_two_work_whatever_is_cut_or_frozen(seed: int) -> None:
    chance = random.Random(seed)
    api, clock = Api(), Clock()
    replicas = [replica(api, name, clock) for name in "abc"]
    held = 0
    for _ in range(400):
        clock.now += chance.choice((0.1, 1.0, 3.0))
        leadership, line = chance.choice(replicas)
        line.is_cut = chance.random() < 0.3
        if chance.random() < 0.8:  # else it is frozen
            leadership.try_once()
        leading = [each for each, _ in replicas if each.leads]
        assert len(leading) <= 1
        held += len(leading)
    assert held > 100
