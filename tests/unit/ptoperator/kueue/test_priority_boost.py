"""A running job's priority in Kueue grows with the work that preemption would lose. Kueue's part is a test's."""

import pytest
from tests.builders.kueue import objects as made_by_kueue
from tests.builders.operator.job_steps import NAME, settle, start
from tests.builders.operator.world import Operator, World
from tests.unit.ptoperator.kueue.test_kueue import NO_QUOTA, queued

from ptkube.resources import JOBSETS, WORKLOADS, Manifest
from ptoperator.kube import labels
from ptoperator.plan.optional.priority_boost import boost
from ptoperator.settings import Settings

SETTINGS = Settings(kueue_priority_boost=100, kueue_boost_seconds=400)


def running(operator: Operator, world: World, settings: Settings = SETTINGS) -> Manifest:
    """Return the Workload of a job that Kueue has let run."""
    operator.settings = settings
    workload = queued(operator, world, conditions=[made_by_kueue.pending(NO_QUOTA)])
    world.admit()
    start(operator)
    return workload


def annotation(world: World, workload: Manifest) -> str | None:
    manifest = world.api.find(WORKLOADS, workload["metadata"]["name"])
    assert manifest is not None
    value: str | None = (manifest["metadata"].get("annotations") or {}).get(labels.KUEUE_PRIORITY_BOOST)
    return value


def train(operator: Operator, world: World, seconds: int, step: int, checkpoint: int | None = None) -> None:
    """Train on, a step every ten seconds, as the operator sees it."""
    for index in range(seconds // 10):
        world.tick(10)
        world.progress(step + index)
        operator.work()
    if checkpoint is not None:
        world.progress(step + seconds // 10, checkpoint=checkpoint)
    for _ in range(2):  # what is known of the Workload is read again before it is written
        world.tick(11)
        operator.work()


def test_it_grows_with_unsaved_work_and_ends_with_the_checkpoint(operator: Operator, world: World) -> None:
    workload = running(operator, world)
    assert annotation(world, workload) is None
    train(operator, world, 110, 4)
    assert annotation(world, workload) == "25"
    train(operator, world, 300, 15)
    assert annotation(world, workload) == "100"
    train(operator, world, 20, 45, checkpoint=46)
    assert annotation(world, workload) is None


def test_a_step_between_two_levels_writes_nothing(operator: Operator, world: World) -> None:
    workload = running(operator, world)
    train(operator, world, 120, 4)
    before = world.api.find(WORKLOADS, workload["metadata"]["name"])
    train(operator, world, 30, 16)
    assert world.api.find(WORKLOADS, workload["metadata"]["name"]) == before


def test_an_evicted_job_has_none_so_that_it_passes_nobody(operator: Operator, world: World) -> None:
    workload = running(operator, world)
    train(operator, world, 210, 4)
    assert annotation(world, workload) == "50"
    evicted = world.api.find(JOBSETS, NAME)
    assert evicted is not None
    evicted["spec"]["suspend"] = True
    world.api.put(JOBSETS, evicted)
    reason = made_by_kueue.condition("Evicted", True, "Preempted", "Preempted by a workload of priority 1000")
    boosted = world.api.find(WORKLOADS, workload["metadata"]["name"])
    assert boosted is not None
    boosted["status"] = {"conditions": [reason, made_by_kueue.pending(NO_QUOTA)]}
    world.api.put(WORKLOADS, boosted)
    settle(operator)
    assert annotation(world, workload) is None


def test_without_the_setting_the_workload_is_neither_read_nor_written(operator: Operator, world: World) -> None:
    workload = running(operator, world, Settings())
    train(operator, world, 410, 4)
    assert annotation(world, workload) is None


@pytest.mark.parametrize(
    ("unsaved_s", "wanted"), [(0, 0), (99, 0), (100, 25), (399, 75), (400, 100), (1599, 100), (1600, 0)]
)
def test_quarters_up_to_the_limit_beyond_which_a_job_that_saves_nothing_is_not_protected(
    unsaved_s: float, wanted: int
) -> None:
    assert boost(unsaved_s, 100, 400) == wanted
