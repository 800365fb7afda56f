"""Old local copies do no harm: what a decision needs is read again, and only that."""

from typing import Any

import pytest
from tests.builders.operator.cloud_site import Site
from tests.builders.operator.job_steps import NAME, bring_up, create, edit, phase, settle, start
from tests.builders.operator.world import NAMESPACE, Api, Operator, World

from ptkube.client import ListResult
from ptkube.resources import JOBSETS, PODS, POSTTRAINJOBS, Manifest, Resource

KEY = (NAMESPACE, NAME)


class Counted:
    """The API server, and what it is asked for."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.reads: list[str] = []

    def get(self, r: Resource, name: str, namespace: str | None = None) -> Manifest:
        self.reads.append(f"get {r.plural}")
        return self._api.get(r, name, namespace)

    def list(self, r: Resource, namespace: str | None = None, **selected: Any) -> ListResult:
        self.reads.append(f"list {r.plural}")
        return self._api.list(r, namespace, **selected)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._api, verb)


@pytest.fixture
def counted(operator: Operator, world: World) -> Counted:
    operator.client = Counted(world.api)
    return operator.client


def test_a_running_job_is_followed_without_a_read(operator: Operator, world: World, counted: Counted) -> None:
    bring_up(operator)
    counted.reads.clear()
    for _ in range(30):
        operator.news.add(KEY)
        world.tick(10)
        operator.work()
    assert counted.reads == []


def test_a_life_takes_few_reads(operator: Operator, world: World, counted: Counted) -> None:
    bring_up(operator)
    for pod in world.unfinished:
        world.exit(pod, 0)
    settle(operator)
    assert phase(world) == "Succeeded"
    assert sorted(counted.reads) == ["get jobsets", "get posttrainjobs", "list pods", "list pods"]


def test_the_chips_of_a_job_that_succeeded_are_given_back_without_a_read(site: Site) -> None:
    site.provision(NAME)
    site.finish(NAME)
    site.world.run_jobsets()
    site.operator.hear()
    while site.status(NAME).phase != "Succeeded":
        site.operator.look(KEY)
    site.world.tick(60)
    counted = site.operator.client = Counted(site.world.api)
    site.operator.work()
    assert [pool.state for pool in site.model.pools.values()] == ["STOPPING"]
    assert counted.reads == []


def test_a_job_that_was_suspended_unheard_gets_no_jobset(operator: Operator, world: World) -> None:
    create(world)
    operator.hear()
    edit(world, suspend=True)
    operator.look(KEY)
    assert world.api.kinds("JobSet") == []


def test_a_job_that_was_deleted_unheard_gets_no_jobset(operator: Operator, world: World) -> None:
    create(world)
    operator.hear()
    world.api.delete(POSTTRAINJOBS, NAME, NAMESPACE)
    operator.look(KEY)
    assert world.api.kinds("JobSet") == []
    copy = operator.copies.of(POSTTRAINJOBS, NAMESPACE)
    assert copy is not None
    assert copy.items() == [], "what the API server does not have is dropped, also if no watch ever tells"


def test_pods_of_an_earlier_attempt_that_no_watch_told_of_hold_up_the_next(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.api.remove(("JobSet", NAMESPACE, NAME))
    world.collect()
    operator.hear(resources=[POSTTRAINJOBS, JOBSETS])
    pods = operator.copies.of(PODS, NAMESPACE)
    assert pods is not None
    pods.replace([], "0")
    operator.look(KEY)
    assert world.api.kinds("JobSet") == []
    assert world.overlaps == []


def test_an_end_that_was_undone_unheard_ends_no_job(operator: Operator, world: World) -> None:
    """The copy shows an earlier JobSet that completed; the API server has another of its name."""
    bring_up(operator)
    for pod in world.unfinished:
        world.exit(pod, 0)
    world.run_jobsets()
    operator.hear(resources=[JOBSETS, PODS])
    world.api.remove(("JobSet", NAMESPACE, NAME))
    operator.look(KEY)
    assert phase(world) != "Succeeded"


def test_a_conflict_makes_the_next_look_read_anew(operator: Operator, world: World, counted: Counted) -> None:
    """A watch that says nothing for minutes would else keep a job from its status for as long."""
    bring_up(operator)
    edit(world, suspend=True)
    operator.hear(resources=[JOBSETS, PODS])
    world.progress(9)
    world.tick(20)
    operator.look(KEY)
    counted.reads.clear()
    operator.look(KEY)
    assert {"get posttrainjobs", "get jobsets", "list pods"} <= set(counted.reads)
    jobset = world.api.find(JOBSETS, NAME)
    assert jobset is not None
    assert jobset["spec"]["suspend"] is True


def test_a_deletion_that_no_watch_told_of_is_found_at_the_next_resync(operator: Operator, world: World) -> None:
    bring_up(operator)
    world.api.remove(("JobSet", NAMESPACE, NAME))
    world.collect()
    world.reap()
    operator.delivered = dict.fromkeys((POSTTRAINJOBS, JOBSETS, PODS), len(world.api.changes))
    world.tick(operator.settings.resync_seconds + 1)
    operator.look(KEY)
    start(operator)
    assert len(world.api.kinds("JobSet")) == 1
