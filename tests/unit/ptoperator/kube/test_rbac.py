"""RBAC follows from the calls: nothing is missing, nothing is granted that nothing uses."""

import pytest
from tests.builders.kueue import objects as made_by_kueue
from tests.builders.operator import world as operator_world
from tests.builders.operator.cloud_site import Site
from tests.builders.operator.job_steps import NAME, begin, change, settle, start
from tests.builders.operator.world import NAMESPACE, Operator, World, job_manifest
from tests.builders.scripts import load_script

from ptkube.resources import (
    ADMISSION_CHECKS,
    JOBSETS,
    LOCAL_QUEUES,
    POSTTRAINJOBS,
    PROVISIONING_REQUESTS,
    SECRETS,
    WORKLOADS,
    Manifest,
)
from ptoperator.controller.leader_election import Leadership
from ptoperator.controller.orphan_collector import OrphanCollector
from ptoperator.kube import labels
from ptoperator.kube.audited_client import Client, UnlistedCall
from ptoperator.kube.rbac import IN_CLUSTER, IN_NAMESPACES, IN_OWN_NAMESPACE, is_allowed
from ptoperator.kueue.admission_check import mark_active
from ptoperator.settings import Settings


def test_the_charts_rules_are_those_of_the_table() -> None:
    made = load_script("scripts/make_rbac.py")
    assert made.TARGET.read_text(encoding="utf-8") == made.text(), "hint: make crds"


def test_a_call_that_is_not_listed_fails_before_any_server_sees_it() -> None:
    with pytest.raises(UnlistedCall, match="get secrets is not listed; hint: add it"):
        Client(operator_world.Api()).get(SECRETS, "token")
    assert not is_allowed("delete", POSTTRAINJOBS, "status")


def test_every_listed_call_is_made_by_a_job_in_its_life(operator: Operator, world: World) -> None:
    operator_world.CALLS.clear()
    _eventful_life(operator)
    _share_a_board(operator)
    _serve_models(operator)
    _wait_in_a_queue_and_speak_in_a_log(operator)
    _sample_apart(operator)
    _claim_sandboxes(operator)
    _stand_in_line(operator)
    _be_queued_by_google(world)
    _sweep_and_lead(world)
    listed = {
        (verb, right.name)
        for right in (*IN_NAMESPACES, *IN_CLUSTER, *IN_OWN_NAMESPACE)
        if not right.admission
        for verb in right.verbs
    }
    assert listed == operator_world.CALLS


def _sample_apart(operator: Operator) -> None:
    """Samplers with pods of their own, which share a token, and a gang, with the trainer."""
    operator.settings = Settings(pod_groups="v1beta1")
    apart = {"maxNewTokens": 8, "placement": "separate", "separate": {"replicas": 2}}
    operator.world.api.create(
        POSTTRAINJOBS,
        job_manifest("apart", algorithm={"grpo": {}}, rewards=[{"builtin": "gsm8k"}], rollout=apart),
    )
    operator.work()


def _claim_sandboxes(operator: Operator) -> None:
    """Sandboxes of a run that is suspended."""
    world, wanted = operator.world, {"algorithm": {"grpo": {}}, "rewards": [{"builtin": "code"}], "sandbox": {}}
    world.api.create(POSTTRAINJOBS, job_manifest("sandboxed", output={"uri": "gs://lab/sandboxed"}, **wanted))
    start(operator)
    world.api.patch(POSTTRAINJOBS, "sandboxed", NAMESPACE, {"spec": {"runPolicy": {"suspend": True}}})
    settle(operator)


def _wait_in_a_queue_and_speak_in_a_log(operator: Operator) -> None:
    """Kueue and MaxText."""
    world = operator.world
    world.api.put(LOCAL_QUEUES, {**made_by_kueue.local_queue("team", NAMESPACE, "all"), **_named("team")})
    chips = {"accelerator": {"type": "v6e-4"}, "capacity": [{"type": "existing", "waitSeconds": 600}, {"type": "spot"}]}
    queued = job_manifest("queued", queue="team", preflight="Skip", output={"uri": "gs://lab/queued"}, **chips)
    world.api.create(POSTTRAINJOBS, queued)
    settle(operator)
    jobset = world.api.find(JOBSETS, "queued")
    assert jobset is not None
    world.api.put(ADMISSION_CHECKS, {**_named("pools"), "spec": {"controllerName": labels.POOLS_CHECK}})
    check = {"name": "pools", "state": "Pending", "message": "", "lastTransitionTime": made_by_kueue.TIME}
    for holds in (False, True):
        reserved = made_by_kueue.condition("QuotaReserved", holds, "QuotaReserved", "")
        workload = made_by_kueue.workload(jobset, "team", conditions=[reserved], admissionChecks=[check])
        workload["metadata"] |= {"uid": "of-the-workload", "annotations": {labels.KUEUE_PRIORITY_BOOST: "5"}}
        world.api.put(WORKLOADS, workload)
        operator.settings = Settings(kueue_priority_boost=5)
        world.tick(31)
        operator.work()
    runtime = {"maxtext": {"modelName": "llama3.1-8b"}}
    maxtext = job_manifest("maxtext", image="maxtext:1", runtime=runtime, model={"uri": "gs://lab/m/0/items"},
                           output={"uri": "gs://lab/maxtext"})  # fmt: skip
    world.api.create(POSTTRAINJOBS, maxtext)
    start(operator)


def _named(name: str) -> Manifest:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "uid": f"of-{name}"}}


def _eventful_life(operator: Operator) -> None:
    """A pod that starts slowly, a hang, a broken machine, a suspension, node pools wanted, the end, and its TTL."""
    world = operator.world
    begin(operator, runPolicy={"maxRestarts": 1, "hangTimeoutSeconds": 100, "ttlSecondsAfterFinished": 5})
    world.schedule(world.pods[0])
    operator.work()
    world.tick(11)
    operator.work()
    start(operator)
    world.tick(300)
    operator.work()
    for pod in world.unfinished:
        world.exit(pod, 137)
    start(operator)
    change(operator, suspend=True)
    change(operator, suspend=False)
    start(operator)
    job = job_manifest(
        "pooled", capacity=[{"type": "spot"}], accelerator={"type": "v6e-4"}, output={"uri": "gs://lab/other"}
    )
    world.api.create(POSTTRAINJOBS, job)
    operator.settings = Settings(gke_project="p", gke_location="l", gke_cluster="c")
    settle(operator)
    assert labels.FINALIZER in world.api.objects["PostTrainJob", "team-a", "pooled"]["metadata"]["finalizers"]
    operator.settings = Settings()
    world.exit(world.unfinished[0], 1, "No ba16c7433 device found")
    settle(operator)
    world.tick(700)
    start(operator)
    world.exit(world.unfinished[0], 65)
    settle(operator)
    world.tick(10)
    operator.work()
    assert world.api.find(POSTTRAINJOBS, NAME) is None


def _share_a_board(operator: Operator) -> None:
    """Two jobs with one TensorBoard, which is reached from outside."""
    for run, more in (("runs", ""), ("routed", ', "gateway": {"name": "shared"}')):
        operator.settings = Settings(tensorboard_ingress=f'{{"domain": "tb.example.com"{more}}}')
        for name in (f"one-{run}", f"two-{run}"):
            served = job_manifest(name, tensorboard={"server": True}, output={"uri": f"gs://lab/{run}"})
            operator.world.api.create(POSTTRAINJOBS, served)
            settle(operator)


def _serve_models(operator: Operator) -> None:
    """Models of two jobs with everything that a server can have."""
    chips = {"tpu": "v6e-4"}
    behind = {"name": "outside", "endpointPicker": "picker"}
    scaled = {**chips, "replicas": {"min": 1, "max": 2}, "gateway": behind}
    for name, serve in (("scaled", scaled), ("from-zero", {**chips, "replicas": {"min": 0, "max": 2}})):
        made = job_manifest(name, serve=serve, output={"uri": "gs://lab/served"})
        operator.world.api.create(POSTTRAINJOBS, made)
        start(operator)
        for pod in operator.world.unfinished:
            operator.world.exit(pod, 0)
        settle(operator)


def _stand_in_line(operator: Operator) -> None:
    """For TPU nodes that are there, with a priority."""
    spec = {"accelerator": {"type": "v6e-4"}, "preflight": "Skip", "priorityClassName": "high"}
    operator.world.api.create(POSTTRAINJOBS, job_manifest("line", output={"uri": "gs://lab/line"}, **spec))
    settle(operator)


def _be_queued_by_google(world: World) -> None:
    """Until it is suspended."""
    site = Site(world)
    site.create("booked", [{"type": "queuedProvisioning"}], output={"uri": "gs://lab/booked"})
    site.run_until(lambda: world.api.kinds(PROVISIONING_REQUESTS.kind))
    world.api.patch(POSTTRAINJOBS, "booked", NAMESPACE, {"spec": {"runPolicy": {"suspend": True}}})
    site.run_until(lambda: not world.api.kinds(PROVISIONING_REQUESTS.kind))


def _sweep_and_lead(world: World) -> None:
    def record(verb: str, resource: str, outcome: str) -> None:
        operator_world.CALLS.add((verb, resource))

    client = Client(world.api, record)
    cloud = operator_world.OnePoolCloud()
    OrphanCollector(client, cloud, Settings()).collect()
    mark_active(client, world.api.now)
    leadership = Leadership(client, "posttrain-system", "a")
    assert leadership.try_once()
    assert leadership.try_once()
