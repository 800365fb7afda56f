"""Jobs that want the same chips take turns: what they do, and what they say while they wait."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.builders.operator.cloud_site import SETTINGS, Site
from tests.builders.operator.world import NAMESPACE, Api, Operator, World, job_manifest

from ptkube.client import ListResult
from ptkube.errors import Unreachable
from ptkube.resources import EVENTS, JOBSETS, NODES, POSTTRAINJOBS, PRIORITY_CLASSES, Manifest, Resource
from ptoperator.capacity.cloud import Reservation
from ptoperator.capacity.gke.client import Gke
from ptoperator.kube import labels
from ptoperator.observe.cache import JobCache
from ptoperator.settings import Settings

EXISTING: list[Manifest] = [{"type": "existing"}]
RESERVED: list[Manifest] = [{"type": "reservation", "reservation": "r1", "zones": ["us-east5-a"]}]


def add_slices(site: Site, count: int) -> None:
    """Slices of v6e-16 that are there: four nodes each."""
    for index in range(4 * count):
        marks = {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": "4x4",
            "cloud.google.com/gke-nodepool": f"pool-{index // 4}",
        }
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        site.world.api.put(
            NODES,
            {"metadata": {"name": f"n{index}", "namespace": "", "labels": marks, "uid": f"n{index}"}, "status": ready},
        )


def reserve(site: Site, hosts: int, others: int = 0) -> None:
    """A reservation that the cloud tells of. others: VMs that somebody else uses."""

    def look(name: str, zone: str) -> Reservation:
        used = sum(pool.nodes for pool in site.model.pools.values())
        return Reservation(name, zone, hosts, others + used)

    gke = Gke(SETTINGS, site.client, site.gke._seconds, look)
    site.operator.cloud = gke


def made(site: Site) -> list[str]:
    return sorted(each["metadata"]["name"] for each in site.world.api.kinds("JobSet"))


def quota(site: Site, name: str) -> tuple[str, str, str]:
    match = next(each for each in site.status(name).conditions if each.type == "QuotaReserved")
    return match.status, match.reason, match.message


def test_two_jobs_for_one_slice_that_is_there_take_turns(site: Site) -> None:
    add_slices(site, 1)
    site.create("one", EXISTING)
    site.run(10)
    site.create("two", EXISTING)
    site.start_pods()
    site.create("three", EXISTING)
    site.run(70)
    assert made(site) == ["one", "two"], "one more than the nodes take may ask: an autoscaler may bring some"
    assert quota(site, "one")[:2] == ("True", "Admitted")
    assert site.status("three").phase == "Queued"
    message = "waiting for 16 v6e chips of existing nodes, 0 ahead: 32 of 16 chips are in use"
    assert quota(site, "three") == ("False", "WaitingForQuota", message)


def test_jobs_that_all_fit_start_together(site: Site) -> None:
    add_slices(site, 3)
    for name in ("one", "two", "three"):
        site.create(name, EXISTING)
    site.operator.work()
    assert made(site) == ["one", "three", "two"]


def test_cpu_jobs_and_jobs_of_kueue_do_not_stand_in_line(site: Site) -> None:
    for name in ("one", "two"):
        site.create(name, EXISTING, accelerator={"type": "cpu-1"}, training={"batchSize": 8})
        site.create(f"q-{name}", EXISTING, queue="team")
    site.operator.work()
    assert made(site) == ["one", "q-one", "q-two", "two"]
    assert site.status("one").capacity.attempts == []


def test_where_an_autoscaler_makes_nodes_nobody_stands_in_line(world: World) -> None:
    site = Site(world, Settings(queue_existing=False))
    for name in ("one", "two", "three"):
        site.create(name, EXISTING)
    site.operator.work()
    assert made(site) == ["one", "three", "two"]


def scale_up(site: Site, name: str) -> None:
    """The cluster autoscaler says on a pod of a job that it makes nodes for it."""
    pod = next(each for each in site.world.pods if each["metadata"]["labels"][labels.JOB] == name)
    meta = {"name": f"{name}.scaled", "namespace": NAMESPACE, "uid": f"{name}.scaled"}
    about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    message = "pod triggered scale-up: [{pool-1 0->4 (max: 16)}]"
    event = {"metadata": meta, "involvedObject": about, "reason": "TriggeredScaleUp", "message": message}
    site.world.api.put(EVENTS, event)


def test_where_an_autoscaler_begins_to_make_nodes_for_one_the_next_has_its_turn(site: Site) -> None:
    for name in ("one", "two", "three"):
        site.create(name, EXISTING)
        site.run(10)
    site.run(250)
    assert made(site) == ["one"], "nothing tells yet that the cluster can grow"
    scale_up(site, "one")
    site.run(60)
    assert made(site) == ["one", "two"]
    assert site.status("one").capacity.attempts[-1].scaling_up is not None
    scale_up(site, "two")
    site.run(60)
    assert made(site) == ["one", "three", "two"]


def test_a_job_that_wants_more_nodes_than_there_are_keeps_nobody_waiting_for_ever(site: Site) -> None:
    add_slices(site, 1)
    site.create("large", EXISTING, accelerator={"type": "v6e-16", "slices": 2})
    site.run(10)
    site.create("small", EXISTING)
    site.run(200)
    assert made(site) == ["large"], "an autoscaler may still speak"
    site.run(120)
    assert made(site) == ["large", "small"]
    site.create("next", EXISTING)
    site.run(70)
    assert site.status("next").phase == "Queued", "what is there is small's now"


def test_a_job_that_waits_for_nodes_that_others_have_is_not_passed(site: Site) -> None:
    """Its nodes exist: whoever came in between would take them first, and the large job would starve."""
    add_slices(site, 2)
    site.create("large", EXISTING, accelerator={"type": "v6e-16", "slices": 2})
    site.run(10)
    site.create("small", EXISTING)
    site.run(1200)
    assert made(site) == ["large"]


@pytest.mark.parametrize("seed", range(3))
def test_in_every_history_the_jobs_that_fit_run_and_the_others_may_all_ask(world: World, seed: int) -> None:
    """No autoscaler speaks. Jobs of up to three slices come at random where there are none to two."""
    rng, site = random.Random(seed), Site(world)
    add_slices(site, slices := seed % 3)
    sizes = {name: rng.choice((1, 1, 2, 3)) for name in ("one", "two", "three", "four")}
    for name, size in sizes.items():
        site.create(name, EXISTING, accelerator={"type": "v6e-16", "slices": size})
        site.run(rng.choice((5, 40, 400)))
    fitting = {name for name, size in sizes.items() if size <= slices}
    for _ in range(60):
        site.run(60)
        for name in fitting & set(made(site)):
            pods = [pod for pod in site.world.unfinished if pod["metadata"]["labels"][labels.JOB] == name]
            for pod in pods:
                site.world.start(pod)
            site.run(20)
            for pod in pods:
                site.world.exit(pod, 0)
        succeeded = {name for name in sizes if site.status(name).phase == "Succeeded"}
        if succeeded == fitting and set(sizes) - fitting <= set(made(site)):
            return
    raise AssertionError(f"a job is held for ever: {succeeded} of {fitting} ran, {made(site)} may ask")


def test_what_an_autoscaler_makes_for_one_job_counts_against_the_next_once_it_is_there(site: Site) -> None:
    site.create("one", EXISTING)
    site.run(10)
    scale_up(site, "one")
    site.run(60)
    add_slices(site, 1)
    site.start_pods()
    site.run(10)
    site.create("two", EXISTING)
    site.create("three", EXISTING)
    site.run(70)
    assert len(made(site)) == 2, "one more than the nodes take may ask"
    assert site.status("one").capacity.attempts[-1].ready is not None


@pytest.mark.parametrize("end", ["finish", "suspend", "delete"])
def test_the_next_has_its_turn_when_one_ends_is_suspended_or_deleted(site: Site, end: str) -> None:
    reserve(site, 4)
    site.create("one", RESERVED)
    site.run_until(lambda: made(site) == ["one"])
    site.start_pods()
    site.create("two", RESERVED)
    site.run(60)
    assert (made(site), len(site.model.pools)) == (["one"], 1)
    if end == "finish":
        site.finish()
    elif end == "suspend":
        site.world.api.patch(POSTTRAINJOBS, "one", NAMESPACE, {"spec": {"runPolicy": {"suspend": True}}})
    else:
        site.world.api.delete(POSTTRAINJOBS, "one", NAMESPACE)
    site.run_until(lambda: "two" in made(site))
    assert [pool.labels["posttrain-job"] for pool in site.model.pools.values()] == ["two"]


def test_a_waiting_job_says_how_many_are_ahead_and_why_but_no_names(site: Site) -> None:
    reserve(site, 8)
    for name in ("one", "two", "three", "four"):
        site.create(name, RESERVED)
        site.run(35)
    site.run(65)
    assert quota(site, "three")[2] == "waiting for 16 v6e chips of reservation r1, 0 ahead: 32 of 32 chips are in use"
    assert quota(site, "four")[2] == "waiting for 16 v6e chips of reservation r1, 1 ahead: 32 of 32 chips are in use"


def test_a_higher_priority_class_comes_first(site: Site) -> None:
    site.world.api.put(
        PRIORITY_CLASSES, {"metadata": {"name": "high", "namespace": NAMESPACE, "uid": "p"}, "value": 1000}
    )
    reserve(site, 4)
    site.create("one", RESERVED)
    site.run_until(lambda: made(site) == ["one"])
    site.create("two", RESERVED)
    site.run(35)
    site.create("urgent", RESERVED, priorityClassName="high")
    site.run(35)
    assert quota(site, "urgent")[2].startswith("waiting for 16 v6e chips of reservation r1, 0 ahead")
    assert ", 1 ahead" in quota(site, "two")[2]
    site.finish()
    site.run_until(lambda: "urgent" in made(site))
    assert "two" not in made(site)


def test_an_operator_that_knows_nothing_yet_gives_no_turn_twice(site: Site) -> None:
    """Its memory is empty, as in a process that has just started: all jobs are read before a turn is given."""
    reserve(site, 4)
    site.create("one", RESERVED)
    site.run(10)
    site.create("two", RESERVED)
    for _ in range(10):
        site.operator.hear()
        site.operator.cache = JobCache()
        site.operator.look((NAMESPACE, "two"))
        site.world.tick(11)
    assert site.status("one").capacity.attempts[0].granted is not None
    assert site.status("two").capacity.attempts[0].granted is None


class Watched:
    """The operator's client: counts the lists of all jobs, and may lose the answer to a turn."""

    def __init__(self, api: Api) -> None:
        self._api, self.lists, self.lost = api, 0, False

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._api, verb)

    def list(self, r: Resource, namespace: str | None = None, **selectors: str | None) -> ListResult:
        self.lists += r is POSTTRAINJOBS
        return self._api.list(r, namespace, **selectors)

    def replace_status(self, r: Resource, body: Manifest) -> Manifest:
        written = self._api.replace_status(r, body)
        if self.lost and body["status"]["capacity"]["attempts"][-1].get("granted"):
            self.lost = False
            raise Unreachable(0, "Unreachable", "the answer was lost")
        return written


def test_all_jobs_are_listed_once_for_all_turns_and_again_for_a_new_term(world: World) -> None:
    """What changes in a line after that are the operator's own writes: of thousands of jobs each list is megabytes."""
    site = Site(world, replace(SETTINGS, resync_seconds=36000))
    client = site.operator.client = Watched(site.world.api)
    reserve(site, 4)
    for name in ("one", "two", "three"):
        site.create(name, RESERVED)
    for name in ("one", "two"):
        site.run_until(lambda name=name: name in made(site))
        site.finish(name)
    assert client.lists == 1
    site.operator.cache.doubt_turns()
    site.run_until(lambda: "three" in made(site))
    assert client.lists == 2


def test_a_turn_whose_answer_was_lost_counts_for_all_others(site: Site) -> None:
    """One has it although the operator has not heard so; then somebody of a higher priority comes to the head."""
    high = {"metadata": {"name": "high", "namespace": NAMESPACE, "uid": "p"}, "value": 1000}
    site.world.api.put(PRIORITY_CLASSES, high)
    client = site.operator.client = Watched(site.world.api)
    reserve(site, 4)
    site.create("one", RESERVED)
    client.lost = True
    while client.lost:
        site.operator.hear()
        site.operator.look((NAMESPACE, "one"))
    assert site.status("one").capacity.attempts[0].granted is not None
    site.operator.delivered[POSTTRAINJOBS] = len(site.world.api.changes)
    site.create("urgent", RESERVED, priorityClassName="high")
    for _ in range(5):
        site.operator.hear()
        site.operator.look((NAMESPACE, "urgent"))
    assert site.status("urgent").capacity.attempts[0].granted is None


def test_what_another_thread_read_before_does_not_replace_what_is_known() -> None:
    job = {**job_manifest("one"), "status": {"phase": "Queued"}}
    older, newer = (
        {**job, "metadata": {**job["metadata"], "uid": "u", "resourceVersion": version}} for version in ("9", "10")
    )
    cache = JobCache()
    assert cache.note_job(newer).version == "10"
    assert cache.note_job(older).version == "10"


def test_who_is_far_behind_looks_less_often_but_in_time_for_its_own_limit(site: Site) -> None:
    reserve(site, 4)
    limited: list[Manifest] = [{**RESERVED[0], "waitSeconds": 100}, {"type": "spot", "zones": ["us-east5-a"]}]
    for number in range(250):
        site.create(f"job-{number:03d}", RESERVED)
    site.create("limited", limited)
    site.operator.work()
    for key in site.operator.cache.known_jobs():
        site.operator.look(key)
    pauses = Counter((due - site.world.api.now).total_seconds() for due in site.operator.timers.values())
    assert (pauses[30], pauses[60], pauses[90]) == (99, 100, 50)
    site.world.tick(60)
    site.operator.look((NAMESPACE, "limited"))
    assert (site.operator.timers[NAMESPACE, "limited"] - site.world.api.now).total_seconds() == 40


def test_a_reservation_with_too_little_left_is_not_asked(site: Site) -> None:
    reserve(site, 8, others=6)
    site.create("one", [{**RESERVED[0], "waitSeconds": 600}, {"type": "spot", "zones": ["us-east5-a"]}])
    site.run_until(lambda: made(site))
    assert site.outcomes("one")[0] == (
        "reservation r1 in us-east5-a: NO_FREE_CAPACITY in us-east5-a after 0s, trying spot: "
        "no free capacity in reservation r1: 16 chips needed, 8 free"
    )
    (pool,) = site.model.pools.values()
    assert pool.manifest["config"]["spot"] is True


def test_a_reservation_that_others_of_us_hold_is_left_for_the_next_option_unless_a_time_is_given(site: Site) -> None:
    reserve(site, 4)
    site.create("one", RESERVED)
    site.run_until(lambda: made(site) == ["one"])
    spot = {"type": "spot", "zones": ["us-east5-a"]}
    site.create("two", [*RESERVED, spot])
    site.create("three", [{**RESERVED[0], "waitSeconds": 600}, spot])
    site.run_until(lambda: "two" in made(site))
    assert "NO_FREE_CAPACITY" in site.outcomes("two")[0]
    assert site.status("three").phase == "Queued"
    site.run_until(lambda: "three" in made(site))
    assert "NO_TURN in us-east5-a after 10m" in site.outcomes("three")[0]


def test_a_job_larger_than_the_reservation_says_so_and_keeps_nobody_waiting(site: Site) -> None:
    reserve(site, 4)
    site.create("large", RESERVED, accelerator={"type": "v6e-16", "slices": 2})
    site.run(10)
    site.create("small", RESERVED)
    site.run_until(lambda: made(site) == ["small"])
    assert "reservation r1 has 16 chips, 32 needed" in site.outcomes("large")[0]


def test_a_job_whose_pods_were_made_again_keeps_its_turn(site: Site, operator: Operator) -> None:
    add_slices(site, 1)
    site.create("one", EXISTING)
    site.start_pods()
    site.run(10)
    granted = site.status("one").capacity.attempts[0].granted
    jobset = site.world.api.find(JOBSETS, "one")
    assert jobset is not None
    site.world.api.delete(JOBSETS, "one", NAMESPACE)
    site.run(60)
    assert made(site) == ["one"]
    assert [each.granted for each in site.status("one").capacity.attempts] == [granted]


def test_a_suspended_job_gives_its_turn_away_and_takes_another_when_it_is_resumed(site: Site) -> None:
    add_slices(site, 1)
    site.create("one", EXISTING)
    site.run(10)
    site.start_pods()
    site.create("two", EXISTING)
    site.create("three", EXISTING)
    site.run(70)
    suspend = {"spec": {"runPolicy": {"suspend": True}}}
    for name in ("one", "two"):
        site.world.api.patch(POSTTRAINJOBS, name, NAMESPACE, suspend)
    site.run(70)
    assert [str(site.status(name).phase) for name in ("one", "two")] == ["Suspended", "Suspended"]
    assert quota(site, "three")[:2] == ("True", "Admitted")
    site.start_pods()
    for name in ("one", "two"):
        resume = {"spec": {"runPolicy": {"suspend": False}}}
        site.world.api.patch(POSTTRAINJOBS, name, NAMESPACE, resume)
    site.run(130)
    assert site.status("three").phase == "Running"
    assert sorted(str(site.status(name).phase) for name in ("one", "two")) == ["Provisioning", "Queued"]
