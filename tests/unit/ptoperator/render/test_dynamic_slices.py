"""Slices of tpu7x that Kueue and GKE form at admission: what is rendered, and what is said where nobody forms them.

GKE's slice controller for Kueue acts on JobSets whose pods name the shape of a slice by an annotation and tpu7x by a
node selector, and which request all 64 chips of each cube that they take (its webhook refuses others).
"""

from typing import Any

import pytest
from tests.builders.kueue import objects as made_by_kueue
from tests.builders.operator.job_steps import NAME, begin, phase, settle, start, status
from tests.builders.operator.manifest_checks import refusals, with_public_crds
from tests.builders.operator.world import NAMESPACE, Operator, World
from tests.unit.ptoperator.render.test_render import SETTINGS, job, job_manifest, pod_spec

from ptkube.resources import ADMISSION_CHECKS, JOBSETS, LOCAL_QUEUES, WORKLOADS, Manifest
from ptoperator.kube import labels
from ptoperator.render import jobset, layout_of

TOPOLOGY = "cloud.google.com/gke-tpu-slice-topology"


def made_for(type: str, slices: int = 1, name: str = "llama", **spec: Any) -> Manifest:
    accelerator = {"type": type, "slices": slices, "dynamicSlicing": True}
    training = {"steps": 1, "batchSize": 6144}
    return jobset(
        layout_of(job(job_manifest(name, accelerator=accelerator, training=training, queue="team", **spec)), SETTINGS)
    )


def template(made: Manifest, at: int = -1) -> Manifest:
    body: Manifest = made["spec"]["replicatedJobs"][at]["template"]
    return body


@pytest.mark.parametrize(
    ("type", "slices", "shape"),
    [("tpu7x-8", 1, "2x2x1"), ("tpu7x-64", 2, "2x4x4"), ("tpu7x-128", 1, "4x4x4"), ("tpu7x-512", 3, "4x8x8")],
)
def test_pods_name_the_shape_and_no_node_has_to_have_it(type: str, slices: int, shape: str) -> None:
    made = made_for(type, slices)
    pod = template(made)["spec"]["template"]
    assert pod["metadata"]["annotations"][TOPOLOGY] == shape
    assert pod["spec"]["nodeSelector"] == {"cloud.google.com/gke-tpu-accelerator": "tpu7x"}
    assert labels.EXCLUSIVE_TOPOLOGY not in str(made), "a slice of several pools, or of a part of one"
    assert made["metadata"]["labels"][labels.KUEUE_QUEUE] == "team"
    assert made["spec"]["suspend"] is True
    chips = sum(each["resources"]["limits"]["google.com/tpu"] for each in pod_spec(made)["containers"])
    edges = [int(edge) for edge in shape.split("x")]
    assert chips * template(made)["spec"]["parallelism"] == edges[0] * edges[1] * edges[2]


def test_pathways_workers_name_it_and_its_head_stays_alone_on_a_node() -> None:
    enabled = {"enabled": True}
    made = made_for("tpu7x-256", 2, pathways=enabled, output={"uri": "gs://lab/runs"})
    worker, head = template(made), template(made, 0)
    assert worker["spec"]["template"]["metadata"]["annotations"][TOPOLOGY] == "4x4x8"
    assert "annotations" not in worker["metadata"]
    assert head["metadata"]["annotations"] == {labels.EXCLUSIVE_TOPOLOGY: "kubernetes.io/hostname"}
    assert TOPOLOGY not in head["spec"]["template"]["metadata"]["annotations"]


@with_public_crds
def test_jobset_takes_pods_that_name_a_shape() -> None:
    assert refusals(made_for("tpu7x-256", 2), "jobset.x-k8s.io_jobsets", "v1alpha2") == []


def test_names_leave_room_for_those_of_gkes_slices() -> None:
    assert len(made_for("tpu7x-128", name="a-very-long-name-of-a-job-that-nobody-types")["metadata"]["name"]) <= 28


def test_without_the_field_a_slice_is_a_pool_as_before() -> None:
    spec = {"accelerator": {"type": "tpu7x-128"}, "training": {"steps": 1, "batchSize": 128}, "queue": "team"}
    made = jobset(layout_of(job(job_manifest(**spec)), SETTINGS))
    assert pod_spec(made)["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4x4"
    assert TOPOLOGY not in str(made)


SPEC = {
    "accelerator": {"type": "tpu7x-128", "dynamicSlicing": True}, "training": {"steps": 10, "batchSize": 128},
    "queue": "team", "preflight": "Skip", "output": {"uri": "file:///runs"},
}  # fmt: skip
RESERVED = made_by_kueue.condition("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue")


def reserve(operator: Operator, world: World, checks: list[Manifest]) -> None:
    """A job of which Kueue says that quota is reserved, with these admission checks."""
    local_queue = made_by_kueue.local_queue("team", NAMESPACE, "cluster-queue")
    world.api.put(LOCAL_QUEUES, {**local_queue, "metadata": {**local_queue["metadata"], "uid": "q"}})
    for name, controller in (("slices", "accelerator.gke.io/slice"), ("dws", "kueue.x-k8s.io/provisioning-request")):
        meta = {"name": name, "namespace": NAMESPACE, "uid": name}
        world.api.put(ADMISSION_CHECKS, {"metadata": meta, "spec": {"controllerName": controller}})
    begin(operator, **SPEC)
    owner = world.api.find(JOBSETS, NAME)
    assert owner is not None
    workload = made_by_kueue.workload(owner, "team", conditions=[RESERVED], admissionChecks=checks)
    world.api.put(WORKLOADS, {**workload, "metadata": {**workload["metadata"], "uid": "w"}})
    world.tick(operator.settings.queue_seconds + 1)
    operator.work()


def check(name: str, state: str, message: str = "") -> Manifest:
    return {"name": name, "state": state, "message": message, "lastTransitionTime": made_by_kueue.TIME}


def test_while_slices_are_formed_the_job_says_so_and_then_runs(operator: Operator, world: World) -> None:
    reserve(operator, world, [check("slices", "Pending", "The Slices: 1 ACTIVATING")])
    (condition,) = (each for each in status(world).conditions if each.type == "QuotaReserved")
    assert condition.message.endswith("admission check slices is Pending: The Slices: 1 ACTIVATING")
    (workload,) = world.api.kinds("Workload")
    workload["status"]["admissionChecks"] = [check("slices", "Ready")]
    world.api.put(WORKLOADS, workload)
    world.admit()
    settle(operator)
    assert phase(world) == "Provisioning"
    start(operator)
    assert phase(world) == "Running"


@pytest.mark.parametrize("checks", [[], [check("dws", "Ready")]])
def test_a_queue_that_has_no_slices_formed_fails_the_job_and_says_what_it_lacks(
    operator: Operator, world: World, checks: list[Manifest]
) -> None:
    reserve(operator, world, checks)
    world.admit()
    settle(operator)
    failure = status(world).failure
    assert failure is not None
    assert (phase(world), failure.failure_class) == ("Failed", "ConfigError")
    assert failure.message.startswith("cluster-queue admits jobs without having GKE form their slices; hint: install")
    assert "controllerName accelerator.gke.io/slice" in failure.message
