"""Who waits, what Kueue gives out, and who uses which chips."""

import json
from collections.abc import Callable
from typing import Any

from ptctl.cluster.doctor.queues import CLUSTER_QUEUES
from ptkube.errors import NotFound
from ptkube.resources import NODES, PODS, POSTTRAINJOBS

Invoke = Callable[..., Any]
QUOTA = {"type": "QuotaReserved", "status": "False", "reason": "WaitingForQuota", "message": "2 ahead"}


def test_the_queue_shows_who_waits_longest_and_for_what(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any]
) -> None:
    for name, phase, created in (("new", "Provisioning", "2026-01-02"), ("old", "Queued", "2026-01-01")):
        job = make_job(name, phase, conditions=[QUOTA] if name == "old" else [], spec={"queue": "team"})
        job["metadata"]["creationTimestamp"] = f"{created}T00:00:00Z"
        kube.put(POSTTRAINJOBS, job)
    kube.put(POSTTRAINJOBS, make_job("runs", "Running"))
    rows = json.loads(invoke("cluster", "queue", "-o", "json").out)["items"]
    assert [(row["name"], row["waits for"]) for row in rows] == [("old", "2 ahead"), ("new", "the operator")]
    assert invoke("cluster", "queue").out.splitlines()[0].split() == [
        "NAMESPACE", "NAME", "PHASE", "QUEUE", "ACCELERATOR", "CHIPS", "AGE", "WAITS", "FOR",
    ]  # fmt: skip


def test_the_queue_shows_a_job_whose_model_is_being_staged(
    invoke: Invoke, kube: Any, make_job: Callable[..., Any]
) -> None:
    staging = QUOTA | {"type": "Staged", "message": "copying hf://org/m"}
    kube.put(POSTTRAINJOBS, make_job("llama", "Preflight", conditions=[QUOTA, staging]))
    (row,) = json.loads(invoke("cluster", "queue", "-o", "json").out)["items"]
    assert row["waits for"] == "copying hf://org/m"


def test_the_quota_shows_what_is_reserved_and_used_of_each_flavor(invoke: Invoke, kube: Any) -> None:
    resource = {"name": "google.com/tpu", "nominalQuota": 64}
    body = {
        "metadata": {"name": "cq"},
        "spec": {"resourceGroups": [{"coveredResources": [], "flavors": [{"name": "v5p", "resources": [resource]}]}]},
        "status": {
            "pendingWorkloads": 2,
            "flavorsReservation": [{"name": "v5p", "resources": [{"name": "google.com/tpu", "total": 32}]}],
            "conditions": [{"type": "Active", "status": "True"}],
        },
    }
    kube.put(CLUSTER_QUEUES, body)
    line = invoke("cluster", "quota").out.splitlines()[1]
    assert line.split() == ["cq", "v5p", "google.com/tpu", "64", "32", "0", "2", "True"]


def test_a_cluster_without_kueue_says_so(invoke: Invoke, kube: Any) -> None:
    kube.error = NotFound(404, "NotFound", "the server could not find the requested resource")
    result = invoke("cluster", "quota")
    assert (result.code, "Kueue is not installed in this cluster" in result.err) == (0, True)


def node(kube: Any, name: str, *, is_ready: bool = True, **marks: str) -> None:
    status = {
        "capacity": {"google.com/tpu": "4"},
        "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
    }
    there = {"cloud.google.com/gke-nodepool": "pool", "cloud.google.com/gke-tpu-topology": "2x4", **marks}
    kube.put(NODES, {"metadata": {"name": name, "labels": there}, "status": status})


def test_nodes_are_counted_by_pool_with_the_jobs_that_hold_their_chips(invoke: Invoke, kube: Any) -> None:
    node(kube, "a")
    node(kube, "b", is_ready=False)
    kube.put(NODES, {"metadata": {"name": "cpu"}, "status": {"capacity": {"cpu": "8"}}})
    for name, where, phase in (("p0", "a", "Running"), ("p1", "b", "Succeeded"), ("p2", None, "Pending")):
        spec = {"containers": [{"resources": {"limits": {"google.com/tpu": "4"}}}]}
        meta = {"name": name, "labels": {"posttrain.dev/job": "llama"}}
        pod = {"metadata": meta, "spec": {**spec, **({"nodeName": where} if where else {})}}
        kube.put(PODS, {**pod, "status": {"phase": phase}})
    (row,) = json.loads(invoke("cluster", "nodes", "-o", "json").out)["items"]
    assert (row["pool"], row["ready"], row["chips"], row["used"], row["by"]) == ("pool", "1/2", 8, 4, "default/llama")


def test_nothing_to_show_is_said_on_stderr(invoke: Invoke) -> None:
    assert [invoke("cluster", verb).err for verb in ("queue", "nodes")] == ["no job waits\n", "no node has chips\n"]
