"""Pods that the API server refuses: the cause is told at once, and ends the job as any failing start does."""

from typing import Any

import pytest
from tests.builders.operator.job_steps import condition, create, phase, settle, status
from tests.builders.operator.world import NAMESPACE, START, Operator, World

from ptkube import timestamps
from ptkube.resources import EVENTS, JOBS, JOBSETS, Manifest, Resource
from ptoperator.failures.pod_creation import creation_failure
from ptoperator.kube import labels
from ptoperator.observe.watch_caches import WATCHED

JOBSET, JOB = "llama", "llama-slice-0"
QUOTA = 'pods "llama-slice-0-0-{}" is forbidden: exceeded quota: team, requested: cpu=1, used: cpu=4, limited: cpu=4'
WEBHOOK = 'Internal error occurred: failed calling webhook "check.team": connection refused'


def refuse(world: World, message: str = QUOTA, reason: str = "FailedCreate") -> Manifest:
    """The controllers' side: a child Job without pods, and an event of each try."""
    if world.api.find(JOBS, JOB) is None and reason == "FailedCreate":
        meta = {"name": JOB, "namespace": NAMESPACE, "labels": {labels.JOBSET_NAME: JOBSET}}
        world.api.create(JOBS, {"kind": "Job", "metadata": meta, "spec": {"parallelism": 1}})
    about = world.api.find(JOBS, JOB) if reason == "FailedCreate" else world.api.find(JOBSETS, JOBSET)
    assert about is not None
    tries = len(world.api.kinds("Event"))
    now = timestamps.to_text(world.api.now)
    return world.api.create(
        EVENTS,
        {
            "kind": "Event",
            "metadata": {"name": f"try-{tries}", "namespace": NAMESPACE},
            "involvedObject": {
                "kind": about.get("kind"),
                "name": about["metadata"]["name"],
                "uid": about["metadata"]["uid"],
            },
            "reason": reason,
            "message": f"Error creating: {message.format('bcdf' + 'ghjkl'[tries % 5])}",
            "firstTimestamp": now,
            "lastTimestamp": now,
        },
    )


@pytest.fixture
def started(operator: Operator, world: World) -> Operator:
    """A job whose JobSet exists, and none of its pods."""
    create(world)
    operator.work()
    world.tick(3)
    return operator


@pytest.mark.parametrize(
    ("message", "reason", "kind"),
    [
        (QUOTA, "FailedCreate", "Quota"),
        (WEBHOOK, "FailedCreate", "ServiceLost"),
        ('pods "llama-slice-0-0-" is forbidden: violates PodSecurity "restricted:latest"', "FailedCreate",
         "ConfigError"),
        ('jobs.batch "llama-slice-0" is forbidden: exceeded quota: team', "JobCreationFailed", "Quota"),
    ],
)  # fmt: skip
def test_the_cause_is_told_at_once_and_ends_the_job_after_the_time_of_a_failing_start(
    started: Operator, world: World, message: str, reason: str, kind: str
) -> None:
    refuse(world, message, reason)
    started.work()
    holds, why, text = condition(world, "CapacityReady")
    assert (holds, why) == ("False", "CreateFailed")
    assert text.startswith(
        f"0 of 1 pods have nodes; {f'Job {JOB}' if reason == 'FailedCreate' else f'JobSet {JOBSET}'}: "
    )
    assert message.partition(":")[2] in text
    for _ in range(30):
        world.tick(10)
        started.work()
    assert phase(world) == "Failed"
    assert condition(world, "Failed")[1] == kind
    failure = status(world).failure
    assert failure is not None
    assert message.partition(":")[2] in failure.message


def test_each_try_has_another_name_for_the_pod_and_none_is_worth_a_write(started: Operator, world: World) -> None:
    refuse(world)
    started.work()
    writes = sum(line.startswith("status") for line in world.api.log)
    for _ in range(3):
        world.tick(10)
        refuse(world)
        started.work()
    assert sum(line.startswith("status") for line in world.api.log) == writes


def test_a_job_whose_pods_come_after_all_goes_on(started: Operator, world: World) -> None:
    refuse(world)
    started.work()
    world.api.remove(("Job", NAMESPACE, JOB))
    settle(started)
    assert condition(world, "CapacityReady")[:2] == ("False", "WaitingForNodes")
    for pod in world.pods:
        world.start(pod)
    settle(started)
    assert condition(world, "CapacityReady")[:2] == ("True", "NodesReady")


def test_events_from_before_the_pods_went_missing_count_for_nothing() -> None:
    old = {"message": QUOTA, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:01:00Z"}
    assert creation_failure("Job llama", [old], "2026-01-01T00:02:00Z") is None
    failure = creation_failure("Job llama", [old], timestamps.to_text(START))
    assert failure is not None
    assert failure.since == "2026-01-01T00:00:00Z"


def test_a_preflight_that_gets_no_pod_says_why(operator: Operator, world: World) -> None:
    create(world, accelerator={"type": "v6e-4"}, output={"uri": "gs://lab/runs"})
    operator.work()
    (job,) = world.api.kinds("Job")
    event = {"metadata": {"name": "e", "namespace": NAMESPACE}, "kind": "Event", "reason": "FailedCreate"}
    now = timestamps.to_text(world.api.now)
    event |= {"message": f"Error creating: {WEBHOOK}", "firstTimestamp": now, "lastTimestamp": now}
    world.api.create(EVENTS, {**event, "involvedObject": {key: job["metadata"][key] for key in ("name", "uid")}})
    world.tick(30)
    operator.work()
    assert WEBHOOK in condition(world, "Preflighted")[2]


@pytest.fixture
def listed(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds that were listed."""
    kinds: list[str] = []
    made = world.api.list

    def noting(r: Resource, *rest: Any, **more: Any) -> Any:
        kinds.append(r.kind)
        return made(r, *rest, **more)

    monkeypatch.setattr(world.api, "list", noting)
    return kinds


def test_pods_that_come_late_without_being_refused_cost_no_call(
    started: Operator, world: World, listed: list[str]
) -> None:
    """As with a thousand jobs at once: the controllers have not come to this one yet."""
    for _ in range(6):
        world.tick(10)
        started.work()
    assert listed == []


def test_a_refusal_that_no_watch_tells_of_is_known_after_the_next_resync(started: Operator, world: World) -> None:
    world.tick(started.settings.resync_seconds)
    refuse(world)
    started.hear(resources=WATCHED)
    started.look((NAMESPACE, JOBSET))
    assert condition(world, "CapacityReady")[:2] == ("False", "CreateFailed")


def test_without_a_watch_of_events_the_cause_is_asked_for(started: Operator, world: World) -> None:
    """An older chart's role lets them be listed alone."""
    started.refusals.synced.clear()
    refuse(world)
    started.hear(resources=WATCHED)
    world.tick(10)
    started.look((NAMESPACE, JOBSET))
    assert condition(world, "CapacityReady")[:2] == ("False", "CreateFailed")


def test_a_refusal_of_another_job_is_not_asked_about(started: Operator, world: World, listed: list[str]) -> None:
    refuse(world)
    event = world.api.kinds("Event")[-1]
    event["involvedObject"]["name"] = f"{JOBSET}-2-slice-0"
    world.api.changes[-1][1]["involvedObject"]["name"] = f"{JOBSET}-2-slice-0"
    world.tick(10)
    started.work()
    assert listed == []


def test_a_usual_start_lists_no_events(operator: Operator, world: World, listed: list[str]) -> None:
    create(world)
    settle(operator)
    for pod in world.pods:
        world.start(pod)
    settle(operator)
    assert set(listed) == {"Pod"}


def cannot_mount(world: World, message: str) -> None:
    """A pod that has its node, and the kubelet's event about one of its volumes."""
    world.schedule(world.pods[0])
    now = timestamps.to_text(world.api.now)
    event = {
        "kind": "Event",
        "metadata": {"name": "mount", "namespace": NAMESPACE},
        "involvedObject": {"kind": "Pod", "uid": world.pods[0]["metadata"]["uid"]},
        "reason": "FailedMount",
        "message": message,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    world.api.create(EVENTS, event)


@pytest.mark.parametrize(
    "message",
    [
        'MountVolume.SetUp failed for volume "rewards" : configmap "brevity" not found',
        'MountVolume.SetUp failed for volume "key" : secret "team" not found',
        'MountVolume.SetUp failed for volume "rewards" : references non-existent config key: brevity.py',
    ],
)
def test_a_volume_of_what_is_not_there_is_told_and_stays_told_when_its_pod_is_gone(
    operator: Operator, world: World, message: str
) -> None:
    create(world)
    settle(operator)
    cannot_mount(world, message)
    world.tick(15)
    settle(operator)
    name = world.pods[0]["metadata"]["name"]
    assert condition(world, "Running")[2] == f"pod {name} cannot start: FailedMount: {message}"
    world.tick(300)
    settle(operator)
    assert (phase(world), world.pods) == ("Failed", [])
    failure = status(world).failure
    assert failure is not None
    assert (failure.failure_class, failure.pod) == ("ConfigError", name)
    assert failure.message == f"FailedMount: {message}"


def test_a_mount_that_may_yet_succeed_ends_nothing(operator: Operator, world: World) -> None:
    create(world)
    settle(operator)
    cannot_mount(world, 'MountVolume.SetUp failed for volume "rewards" : failed to sync configmap cache: timed out')
    world.tick(400)
    settle(operator)
    assert phase(world) == "Starting"
