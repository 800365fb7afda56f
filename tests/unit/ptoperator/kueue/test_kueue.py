"""Waiting in a Kueue queue: what the status says, and when the operator looks again. Kueue's part is a test's."""

from typing import Any

import pytest
from tests.builders.kueue import objects as made_by_kueue
from tests.builders.operator.job_steps import NAME, begin, change, condition, phase, settle, start, status
from tests.builders.operator.manifest_checks import refusals, with_public_crds
from tests.builders.operator.world import NAMESPACE, Operator, World, job_manifest
from tests.unit.ptoperator.render.test_render import job

from ptapi.accelerators import resolve
from ptapi.errors import SpecError
from ptkube.resources import JOBSETS, LOCAL_QUEUES, WORKLOADS, Manifest
from ptoperator.kube import labels
from ptoperator.kueue.workload import KueueState, waiting_message
from ptoperator.render import jobset, layout_of
from ptoperator.settings import Settings

V5P = {
    "accelerator": {"type": "v5p-128"}, "training": {"steps": 10, "batchSize": 64}, "queue": "team",
    "preflight": "Skip", "output": {"uri": "file:///runs"},
}  # fmt: skip
NO_QUOTA = "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu, 32 more needed"
VISIBILITY = f"/apis/visibility.kueue.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/localqueues/team/pendingworkloads"


def queued(operator: Operator, world: World, **status: Any) -> Manifest:
    """A job in the queue `team` of `cluster-queue`, of which Kueue says this."""
    local_queue = made_by_kueue.local_queue("team", NAMESPACE, "cluster-queue")
    local_queue["metadata"]["uid"] = "of-the-queue"
    world.api.put(LOCAL_QUEUES, local_queue)
    begin(operator, **V5P)
    return say(operator, world, **status)


def say(operator: Operator, world: World, **status: Any) -> Manifest:
    owner = world.api.find(JOBSETS, NAME)
    assert owner is not None
    workload = made_by_kueue.workload(owner, "team", **status)
    workload["metadata"]["uid"] = "of-the-workload"
    world.api.put(WORKLOADS, workload)
    world.tick(operator.settings.queue_seconds + 1)
    operator.work()
    return workload


def why(world: World) -> str:
    return condition(world, "QuotaReserved")[2]


def test_position_and_reason_stand_in_the_status(operator: Operator, world: World) -> None:
    workload = queued(operator, world, conditions=[made_by_kueue.pending(NO_QUOTA)])
    assert why(world) == f"waiting for 64 v5p chips in cluster-queue: {NO_QUOTA}"
    world.api.paths[VISIBILITY] = made_by_kueue.pending_workloads("other-1", "other-2", workload["metadata"]["name"])
    world.tick(operator.settings.queue_seconds + 1)
    operator.work()
    assert why(world) == f"waiting for 64 v5p chips in cluster-queue, 2 ahead: {NO_QUOTA}"
    assert phase(world) == "Queued"
    assert condition(world, "CapacityReady")[2] == why(world)


def test_a_waiting_job_is_looked_at_every_half_minute_and_written_only_when_something_changed(
    operator: Operator, world: World
) -> None:
    queued(operator, world, conditions=[made_by_kueue.pending(NO_QUOTA)])
    (due,) = operator.timers.values()
    assert (due - world.api.now).total_seconds() == Settings().queue_seconds
    writes = world.api.writes
    for _ in range(5):
        world.tick(31)
        operator.work()
    assert world.api.writes == writes


def test_a_queue_that_is_not_there_is_named(operator: Operator, world: World) -> None:
    begin(operator, **V5P)
    assert "queue team, which does not exist; hint: create the LocalQueue" in why(world)


def test_a_cluster_without_kueue_says_so() -> None:
    words = waiting_message(KueueState("team", has_kueue=False), resolve("v5p-128"))
    assert words == "waiting in queue team, but Kueue is not installed; hint: install Kueue, or remove spec.queue"


def test_a_waiting_admission_check_is_named(operator: Operator, world: World) -> None:
    check = {
        "name": "dws",
        "state": "Pending",
        "message": "Queued since 10:00",
        "lastTransitionTime": made_by_kueue.TIME,
    }
    reserved = made_by_kueue.condition("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue")
    queued(operator, world, conditions=[reserved], admissionChecks=[check])
    assert why(world).endswith("quota is reserved, admission check dws is Pending: Queued since 10:00")


def test_an_eviction_is_a_phase_with_its_reason_and_the_job_comes_back(operator: Operator, world: World) -> None:
    queued(operator, world, conditions=[made_by_kueue.pending(NO_QUOTA)])
    assert condition(world, "QuotaReserved")[:2] == ("False", "WaitingForQuota")
    assert world.pods == []
    world.admit()
    start(operator)
    assert phase(world) == "Running"
    assert condition(world, "QuotaReserved")[:2] == ("True", "Admitted")
    suspended = world.api.find(JOBSETS, NAME)
    suspended["spec"]["suspend"] = True
    world.api.put(JOBSETS, suspended)
    evicted = made_by_kueue.condition(
        "Evicted", True, "Preempted", "Preempted to accommodate a workload of priority 1000"
    )
    requeue = {"count": 2, "requeueAt": "2026-11-21T10:05:00Z"}
    say(operator, world, conditions=[evicted, made_by_kueue.pending(NO_QUOTA)], requeueState=requeue)
    settle(operator)
    assert phase(world) == "Queued"
    assert condition(world, "QuotaReserved")[:2] == ("False", "Evicted")
    assert why(world).startswith(
        "cluster-queue revoked the quota (Preempted: Preempted to accommodate a workload of priority 1000); "
        "waiting for 64 v5p chips in cluster-queue, considered again at 2026-11-21T10:05:00Z (requeued 2 times)"
    )
    assert status(world).failure is None
    assert status(world).restarts == {}
    world.admit()
    settle(operator)
    assert condition(world, "QuotaReserved")[:2] == ("True", "Admitted")


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        (["WaitForStart"], "not all pods ran within Kueue's waitForPodsReady.timeout: nodes or images came later"),
        (["WaitForRecovery"], "a pod that was lost did not come back within Kueue's waitForPodsReady.recoveryTimeout"),
        (
            ["WaitForStart", "WaitForRecovery"],
            "pods did not run within Kueue's waitForPodsReady.timeout, or did not come back within its recoveryTimeout",
        ),
    ],
)
def test_an_eviction_because_pods_were_late_names_the_limit_and_where_it_is_set(
    operator: Operator, world: World, causes: list[str], words: str
) -> None:
    queued(operator, world, conditions=[made_by_kueue.pending(NO_QUOTA)])
    world.admit()
    settle(operator)
    suspended = world.api.find(JOBSETS, NAME)
    suspended["spec"]["suspend"] = True
    world.api.put(JOBSETS, suspended)
    late = made_by_kueue.condition("Evicted", True, "PodsReadyTimeout", "Exceeded the PodsReady timeout default/w")
    counts = [{"reason": "PodsReadyTimeout", "underlyingCause": each, "count": 1} for each in causes]
    conditions = [late, made_by_kueue.pending(NO_QUOTA)]
    say(operator, world, conditions=conditions, schedulingStats={"evictions": counts})
    settle(operator)
    assert (phase(world), status(world).restarts) == ("Queued", {})
    assert why(world).startswith("cluster-queue revoked the quota (PodsReadyTimeout: Exceeded the PodsReady timeout")
    assert why(world).endswith(f"; hint: {words}; raise it in kueue-manager-config (`ptctl cluster doctor` tells it)")


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        ("kueue.x-k8s.io/multikueue", "queue team sends jobs to other clusters (MultiKueue), whose pods would not"),
        ("example.com/other", "example.com/other manages the JobSet (spec.managedBy), and the operator cannot follow"),
    ],
)
def test_a_job_that_another_cluster_would_run_fails_before_it_has_quota_and_says_where_to_go(
    operator: Operator, world: World, manager: str, words: str
) -> None:
    """Kueue's webhook writes `managedBy` when the JobSet is made for a queue with MultiKueue's check."""
    begin(operator, **V5P)
    made = world.api.find(JOBSETS, NAME)
    assert made is not None
    made["spec"]["managedBy"] = manager
    world.api.put(JOBSETS, made)
    world.tick(operator.settings.queue_seconds + 1)
    settle(operator)
    failure = status(world).failure
    assert failure is not None
    assert (phase(world), failure.failure_class) == ("Failed", "ConfigError")
    assert failure.message.startswith(words)
    assert "create the job where it is to run" in failure.message
    assert (world.pods, world.api.find(JOBSETS, NAME)) == ([], None)


def test_a_jobset_that_names_its_own_controller_is_followed(operator: Operator, world: World) -> None:
    begin(operator, **V5P)
    made = world.api.find(JOBSETS, NAME)
    assert made is not None
    made["spec"]["managedBy"] = "jobset.sigs.k8s.io/jobset-controller"
    world.api.put(JOBSETS, made)
    world.tick(operator.settings.queue_seconds + 1)
    settle(operator)
    assert phase(world) == "Queued"


def test_a_workload_that_kueue_put_aside_says_what_to_do(operator: Operator, world: World) -> None:
    workload = queued(operator, world, conditions=[made_by_kueue.pending("The workload is deactivated")])
    workload["spec"]["active"] = False
    world.api.put(WORKLOADS, workload)
    world.tick(31)
    operator.work()
    assert "has deactivated the job: The workload is deactivated; hint: set spec.active" in why(world)


def test_suspending_a_waiting_job_takes_it_out_of_the_queue(operator: Operator, world: World) -> None:
    queued(operator, world, conditions=[made_by_kueue.pending(NO_QUOTA)])
    change(operator, suspend=True)
    assert world.api.find(JOBSETS, NAME) is None
    assert phase(world) == "Suspended"


def test_the_jobset_carries_queue_and_workload_priority() -> None:
    rendered = jobset(layout_of(job(job_manifest(**V5P, queuePriorityClassName="urgent")), Settings()))
    assert rendered["metadata"]["labels"][labels.KUEUE_QUEUE] == "team"
    assert rendered["metadata"]["labels"][labels.KUEUE_PRIORITY] == "urgent"
    assert rendered["spec"]["suspend"] is True
    with pytest.raises(SpecError, match="together with queue"):
        job(job_manifest(queuePriorityClassName="urgent"))


@pytest.mark.parametrize(
    ("accelerator", "words"), [("v5p-128", "64 v5p chips"), ("v6e-1", "1 v6e chip"), ("tpu7x-128", "64 tpu7x chips")]
)
def test_chips_are_counted_not_cores(accelerator: str, words: str) -> None:
    assert waiting_message(KueueState("q"), resolve(accelerator)) == f"waiting for {words} in queue q"


@with_public_crds
def test_the_tests_workloads_have_the_public_crds_shape(operator: Operator, world: World) -> None:
    check = {"name": "dws", "state": "Pending", "message": "", "lastTransitionTime": made_by_kueue.TIME}
    workload = queued(operator, world, conditions=[made_by_kueue.pending(NO_QUOTA)],
                  admissionChecks=[check], requeueState={"count": 1, "requeueAt": made_by_kueue.TIME})  # fmt: skip
    workload["metadata"].pop("resourceVersion")
    assert refusals(workload, "kueue.x-k8s.io_workloads", WORKLOADS.version) == []
    queue = made_by_kueue.local_queue("team", NAMESPACE, "cluster-queue")
    assert refusals(queue, "kueue.x-k8s.io_localqueues", WORKLOADS.version) == []
