"""Who comes next where several jobs want the same chips."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.operator.world import START, job_manifest

from ptapi.accelerators import resolve
from ptkube import timestamps
from ptoperator.capacity import fair_queue
from ptoperator.capacity.fair_queue import Claim, Claims, ahead_message, claim_of, order, queue_of, queue_position
from ptoperator.job import read_job

QUEUE = "reservation r us-east5-a"
NODES = "existing v6e 4x4"
NOW = START + timedelta(hours=1)


def claim(uid: str, **changed: object) -> Claim:
    fields = {"queue": QUEUE, "namespace": "a", "created": f"2026-01-01T00:00:{uid[-1]}0Z", "hosts": 1, **changed}
    return Claim(uid=uid, **fields)  # type: ignore[arg-type]


def granted(uid: str, seconds_ago: float = 0.0, **changed: object) -> Claim:
    return claim(uid, granted=timestamps.to_text(NOW - timedelta(seconds=seconds_ago)), **changed)


def names(claims: list[Claim]) -> list[str]:
    return [each.uid for each in claims]


def test_the_older_job_comes_first() -> None:
    assert names(order([claim("j2"), claim("j1"), claim("j3")])) == ["j1", "j2", "j3"]


def test_a_higher_priority_comes_before_an_older_job_and_before_who_was_first() -> None:
    waiting = [claim("j1", first="2026-01-01T00:01:00Z"), claim("j2", priority=100)]
    assert names(order(waiting)) == ["j2", "j1"]


def test_namespaces_take_turns_by_the_chips_they_hold() -> None:
    """a holds 4 and asks for three more, b holds none: b's two come until it holds as many."""
    claims = [
        granted("h1", hosts=4, is_ready=True),
        *(claim(f"a{index}", hosts=2) for index in (1, 2, 3)),
        *(claim(f"b{index}", hosts=2, namespace="b") for index in (4, 5, 6)),
    ]
    assert names(order(claims)) == ["b4", "b5", "a1", "b6", "a2", "a3"]


def test_who_was_first_stays_first_although_another_namespace_holds_less_by_now() -> None:
    claims = [
        granted("h1", hosts=4, is_ready=True),
        claim("a2", hosts=8, first="2026-01-01T00:01:00Z"),
        claim("b3", namespace="b"),
    ]
    assert names(order(claims)) == ["a2", "b3"]


def test_a_small_job_does_not_pass_a_large_one_that_does_not_fit_yet() -> None:
    large, small, holder = claim("j1", hosts=8), claim("j2", hosts=1), granted("j3", hosts=4, is_ready=True)
    assert not queue_position(large, Claims([small, holder]), 8, NOW).is_now
    position = queue_position(small, Claims([large, holder]), 8, NOW)
    assert (position.is_now, position.ahead, position.held) == (False, 1, 4)


def test_turns_are_given_while_everybody_fits() -> None:
    holder, first, second = granted("j1", hosts=4), claim("j2", hosts=4), claim("j3", hosts=1)
    assert queue_position(first, Claims([holder, second]), 8, NOW).is_now
    assert not queue_position(second, Claims([holder, granted("j2", hosts=4)]), 8, NOW).is_now


def test_of_a_reservation_of_unknown_size_one_job_asks_at_a_time() -> None:
    me = claim("j2")
    assert not queue_position(me, Claims([granted("j1")]), None, NOW).is_now
    assert queue_position(me, Claims([granted("j1", is_ready=True)]), None, NOW).is_now


def test_one_job_more_than_the_nodes_take_may_ask_for_an_autoscaler_may_bring_some() -> None:
    me = claim("j3", queue=NODES, hosts=4)
    holder = granted("j1", queue=NODES, hosts=4, is_ready=True)
    assert queue_position(me, Claims([holder]), 4, NOW).is_now
    assert not queue_position(me, Claims([holder, granted("j2", queue=NODES, hosts=4)]), 4, NOW).is_now


def test_pods_that_find_no_nodes_show_that_others_have_them() -> None:
    me = claim("j2", queue=NODES, hosts=4)
    assert queue_position(me, Claims([granted("j1", 10, queue=NODES, hosts=4)]), 16, NOW).is_now
    assert not queue_position(me, Claims([granted("j1", 61, queue=NODES, hosts=4)]), 16, NOW).is_now


def test_other_lines_do_not_matter() -> None:
    assert queue_position(
        claim("j2"), Claims([granted("j1", queue="reservation other us-east5-a", hosts=100)]), 4, NOW
    ).is_now


def test_cpus_and_pools_that_are_bought_have_no_line() -> None:
    chips = resolve("v5p-128")
    assert queue_of("existing", None, "", resolve("cpu-8")) == ""
    assert queue_of("spot", None, "us-east5-a", chips) == queue_of("onDemand", None, "", chips) == ""
    assert queue_of("existing", None, "", chips) == "existing v5p 4x4x4"


@pytest.mark.parametrize(("ahead", "words"), [(0, "0 ahead"), (20, "20 ahead"), (57, "50+ ahead"), (999, "900+ ahead")])
def test_those_ahead_are_counted_exactly_only_where_it_matters(ahead: int, words: str) -> None:
    assert ahead_message(ahead) == words


def test_a_claim_is_read_from_the_job() -> None:
    attempt = {
        "option": "reservation r",
        "started": "t",
        "entry": 1,
        "zone": "us-east5-a",
        "priority": 7,
        "first": "t1",
    }
    capacity = [{"type": "spot"}, {"type": "reservation", "reservation": "r"}]
    accelerator = {"type": "v6e-16", "slices": 2}
    job = job_manifest("n", accelerator=accelerator, capacity=capacity, output={"uri": "gs://b/r"})
    job["spec"]["training"]["batchSize"] = 32
    job["metadata"] |= {"uid": "u", "creationTimestamp": "t0"}
    job["status"] = {"capacity": {"attempts": [attempt]}}
    assert claim_of(read_job(job)) == Claim(QUEUE, "u", "team-a", "t0", hosts=8, priority=7, first="t1")
    attempt["ended"] = "t2"
    assert claim_of(read_job(job)) is None


CLAIMS = st.lists(
    st.builds(
        lambda namespace, hosts, priority, state: (namespace, hosts, priority, state),
        st.sampled_from("abc"),
        st.integers(1, 8),
        st.sampled_from((0, 0, 100)),
        st.sampled_from(("waiting", "waiting", "asking", "ready")),
    ),
    min_size=1,
    max_size=12,
)


@given(CLAIMS, st.integers(1, 20))
def test_one_job_at_most_has_its_turn_and_never_beyond_the_size(
    made: list[tuple[str, int, int, str]], total: int
) -> None:
    claims = [
        (claim if state == "waiting" else granted)(
            f"j{index:02d}", namespace=namespace, hosts=hosts, priority=priority, is_ready=state == "ready"
        )
        for index, (namespace, hosts, priority, state) in enumerate(made)
    ]
    held = sum(each.hosts for each in claims if each.granted)
    now = [each for each in claims if not each.granted and queue_position(each, Claims(claims), total, NOW).is_now]
    assert len(now) <= 1
    assert all(held + each.hosts <= total for each in now)
    waiting = order(claims)
    assert sorted(names(waiting)) == sorted(each.uid for each in claims if not each.granted)
    assert [each.priority for each in waiting] == sorted((each.priority for each in waiting), reverse=True)


def test_a_queue_is_put_in_order_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of waiting jobs each asks for its position: one order for each would be their square."""
    orders: list[int] = []
    monkeypatch.setattr(fair_queue, "order", lambda claims: orders.append(1) or order(claims))
    claims = Claims(claim(f"j{number}") for number in range(50))
    positions = [queue_position(each, claims, 4, NOW).ahead for each in claims]
    assert sorted(positions) == list(range(50))
    assert len(orders) == 1
