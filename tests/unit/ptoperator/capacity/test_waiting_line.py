"""Who comes next where several jobs want the same chips."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.operator.world import START, job_manifest

from ptapi.accelerators import resolve
from ptkube import timestamps
from ptoperator.capacity.waiting_line import fair_order, sorted_claims
from ptoperator.capacity.waiting_line.fair_order import Claim, QueuePosition, Turn, ahead_message, claim_of, queue_of
from ptoperator.capacity.waiting_line.sorted_claims import Claims
from ptoperator.job import read_job

QUEUE = "reservation r us-east5-a"
NODES = "existing v6e 4x4"
NOW = START + timedelta(hours=1)


def claim(uid: str, **changed: object) -> Claim:
    fields = {"queue": QUEUE, "namespace": "a", "created": f"2026-01-01T00:00:0{uid[-1]}Z", "hosts": 1, **changed}
    return Claim(uid=uid, **fields)  # type: ignore[arg-type]


def granted(uid: str, seconds_ago: float = 0.0, **changed: object) -> Claim:
    return claim(uid, granted=timestamps.to_text(NOW - timedelta(seconds=seconds_ago)), **changed)


def queue_position(mine: Claim, others: Sequence[Claim], total: int | None) -> QueuePosition:
    return fair_order.queue_position(Claims(others).standing(mine), total, NOW)


def order(claims: Sequence[Claim]) -> list[str]:
    """Uids of the waiting jobs by their positions."""
    line = Claims(claims)
    ahead = {each.uid: line.standing(each).ahead for each in claims if each.is_waiting}
    return sorted(ahead, key=ahead.__getitem__)


def sorted_anew(claims: Sequence[Claim]) -> list[str]:
    """The order in one go: turn by turn, each as if those before it held their chips already."""
    held = Counter[str]()
    for each in claims:
        held[each.namespace] += 0 if each.is_waiting else each.hosts
    waiting = sorted(filter(lambda each: each.is_waiting, claims), key=sorted_claims._within)
    uids: list[str] = []
    while waiting:
        heads = {each.namespace: each for each in reversed(waiting)}.values()
        following = min(
            heads,
            key=lambda each: (-each.priority, each.first or "~", held[each.namespace], each.created, each.uid),
        )
        waiting.remove(following)
        held[following.namespace] += following.hosts
        uids.append(following.uid)
    return uids


def test_the_older_job_comes_first() -> None:
    assert order([claim("j2"), claim("j1"), claim("j3")]) == ["j1", "j2", "j3"]


def test_a_higher_priority_comes_before_an_older_job_and_before_who_was_first() -> None:
    waiting = [claim("j1", first="2026-01-01T00:01:00Z"), claim("j2", priority=100)]
    assert order(waiting) == ["j2", "j1"]


def test_namespaces_take_turns_by_the_chips_they_hold() -> None:
    """a holds 4 and asks for three more, b holds none: b's two come until it holds as many."""
    claims = [
        granted("h1", hosts=4, is_ready=True),
        *(claim(f"a{index}", hosts=2) for index in (1, 2, 3)),
        *(claim(f"b{index}", hosts=2, namespace="b") for index in (4, 5, 6)),
    ]
    assert order(claims) == ["b4", "b5", "a1", "b6", "a2", "a3"]


def test_who_was_first_stays_first_although_another_namespace_holds_less_by_now() -> None:
    claims = [
        granted("h1", hosts=4, is_ready=True),
        claim("a2", hosts=8, first="2026-01-01T00:01:00Z"),
        claim("b3", namespace="b"),
    ]
    assert order(claims) == ["a2", "b3"]


def test_a_small_job_does_not_pass_a_large_one_that_does_not_fit_yet() -> None:
    large, small, holder = claim("j1", hosts=8), claim("j2", hosts=1), granted("j3", hosts=4, is_ready=True)
    assert not queue_position(large, [small, holder], 8).is_now
    position = queue_position(small, [large, holder], 8)
    assert (position.is_now, position.ahead, position.held) == (False, 1, 4)


def test_turns_are_given_while_everybody_fits() -> None:
    holder, first, second = granted("j1", hosts=4), claim("j2", hosts=4), claim("j3", hosts=1)
    assert queue_position(first, [holder, second], 8).is_now
    assert not queue_position(second, [holder, granted("j2", hosts=4)], 8).is_now


def test_of_a_reservation_of_unknown_size_one_job_asks_at_a_time() -> None:
    me = claim("j2")
    assert not queue_position(me, [granted("j1")], None).is_now
    assert queue_position(me, [granted("j1", is_ready=True)], None).is_now


def test_one_job_more_than_the_nodes_take_may_ask_for_an_autoscaler_may_bring_some() -> None:
    me = claim("j3", queue=NODES, hosts=4)
    holder = granted("j1", queue=NODES, hosts=4, is_ready=True)
    assert queue_position(me, [holder], 4).is_now
    assert not queue_position(me, [holder, granted("j2", queue=NODES, hosts=4)], 4).is_now


def test_pods_that_find_no_nodes_show_that_others_have_them() -> None:
    me = claim("j2", queue=NODES, hosts=4)
    assert queue_position(me, [granted("j1", 10, queue=NODES, hosts=4)], 16).is_now
    assert not queue_position(me, [granted("j1", 61, queue=NODES, hosts=4)], 16).is_now


def test_who_wants_more_nodes_than_there_are_is_passed_after_a_while() -> None:
    me, large = claim("j2", queue=NODES, hosts=4), granted("j1", 301, queue=NODES, hosts=8)
    assert queue_position(me, [large], 4) == QueuePosition(True, 0, 0, False)
    assert queue_position(me, [large], None).is_now, "the nodes are counted before the turn is given"
    assert not queue_position(me, [large], 8).is_now
    assert not queue_position(me, [granted("j1", 299, queue=NODES, hosts=8)], 4).is_now


def test_other_lines_do_not_matter() -> None:
    assert queue_position(claim("j2"), [granted("j1", queue="reservation other us-east5-a", hosts=100)], 4).is_now


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
    job = job_manifest("n", accelerator=accelerator, capacity=capacity, output={"uri": "gs://lab/r"})
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
    now = [each for each in claims if not each.granted and queue_position(each, claims, total).is_now]
    assert len(now) <= 1
    assert all(held + each.hosts <= total for each in now)
    uids = order(claims)
    assert sorted(uids) == sorted(each.uid for each in claims if not each.granted)
    priorities = [each.priority for uid in uids for each in claims if each.uid == uid]
    assert priorities == sorted(priorities, reverse=True)


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(("waiting", "waiting", "first", "asking", "ready", "gone")),
        st.sampled_from("aabc"),
        st.integers(1, 8),
        st.sampled_from((0, 0, 100)),
        st.sampled_from((QUEUE, QUEUE, NODES)),
    ),
    max_size=40,
)


STATES: dict[str, dict[str, Any]] = {
    "waiting": {},
    "first": {"first": "2026-01-01T00:01:00Z"},
    "asking": {"granted": "2026-01-01T00:02:00Z"},
    "ready": {"granted": "2026-01-01T00:02:00Z", "is_ready": True},
}


@given(CHANGES)
def test_an_order_that_is_kept_current_is_the_order_made_anew(
    changes: list[tuple[int, str, str, int, int, str]],
) -> None:
    line, claims = Claims(), dict[str, Claim]()
    for number, state, namespace, hosts, priority, queue in changes:
        uid = f"j{number}"
        made = claim(uid, namespace=namespace, hosts=hosts, priority=priority, queue=queue)
        new = None if state == "gone" else replace(made, **STATES[state])
        line.replace(claims.pop(uid, None), new)
        claims |= {uid: new} if new else {}
        for each in (QUEUE, NODES):
            check_line(line, each, [known for known in claims.values() if known.queue == each])


def check_line(line: Claims, queue: str, claims: list[Claim]) -> None:
    expected = sorted_anew(claims)
    waiting = [each for each in claims if each.is_waiting]
    standings = {each.uid: line.standing(each) for each in waiting}
    assert {uid: each.ahead for uid, each in standings.items()} == {uid: at for at, uid in enumerate(expected)}
    assert line.first(queue) == (expected[0] if expected else "")
    held = sum(each.hosts for each in claims if not each.is_waiting)
    provisioning = Counter(Turn(each.granted, each.hosts) for each in claims if each.is_provisioning)
    assert all(each.held == held and Counter(each.provisioning) == provisioning for each in standings.values())
    for each in waiting:  # what this job knows of itself may be newer
        changed = replace(each, first="2026-01-01T00:00:30Z")
        others = [known for known in claims if known is not each]
        assert line.standing(changed).ahead == sorted_anew([*others, changed]).index(each.uid)


def test_neither_a_change_nor_a_position_costs_a_walk_through_all_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of waiting jobs each does both: walks would be their square."""
    comparisons: list[int] = []
    within, key = sorted_claims._within, sorted_claims._Row.key
    monkeypatch.setattr(sorted_claims, "_within", lambda each: comparisons.append(1) or within(each))
    monkeypatch.setattr(sorted_claims._Row, "key", lambda *parts: comparisons.append(1) or key(*parts))

    def cost(count: int) -> int:
        claims = [claim(f"{number:05d}", namespace="ab"[number % 2]) for number in range(count)]
        line = Claims(claims)
        comparisons.clear()
        line.replace(claims[0], replace(claims[0], granted="2026-01-01T00:02:00Z"))
        assert line.standing(claims[-1]).ahead == count - 2
        assert line.first(QUEUE) == claims[1].uid
        return len(comparisons)

    assert cost(4000) <= 1.5 * cost(250)
