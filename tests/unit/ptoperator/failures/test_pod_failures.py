"""From what pods say to failure classes, case by case."""

import json
from typing import Any

import pytest

from ptapi.failures import EXIT_CLASSES, FailureClass
from ptkube.resources import Manifest
from ptoperator.failures.pod_failures import PodFailure, cause, pod_failure, start_failure
from ptoperator.kube import labels, names


def pod(
    code: int | None = None, message: str = "", reason: str = "", *, disruption: tuple[str, str] | None = None
) -> Manifest:
    """A failed pod of attempt 2."""
    state: Manifest = {"terminated": {"exitCode": code, "message": message, "finishedAt": "2026-01-01T00:00:09Z"}}
    if reason:
        state["terminated"]["reason"] = reason
    conditions = []
    if disruption:
        kind, words = disruption
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": kind, "message": words})
    containers = [] if code is None else [{"name": "trainer", "state": state}]
    return {
        "metadata": {"name": "p-0", "labels": {labels.RESTART_ATTEMPT: "2"}},
        "status": {"phase": "Failed", "containerStatuses": containers, "conditions": conditions},
    }


def refused_by_the_node() -> Manifest:
    refused = pod()
    refused["status"]["reason"] = "UnexpectedAdmissionError"
    return refused


def termination(**document: Any) -> str:
    return json.dumps(document)


EVICTED = "The node was low on resource: memory. Threshold quantity: 100Mi"
CASES: dict[str, tuple[Manifest, FailureClass, str]] = {
    "the trainer's own words": (pod(65, termination(exitCode=65, failureClass="DataError", message="row 3")),
     FailureClass.DATA_ERROR, "row 3"),
    "the trainer's class wins over its code": (
        pod(1, termination(exitCode=1, failureClass="Hang", message="no step for 10m")),
        FailureClass.HANG,
        "no step for 10m",
    ),
    "a class nobody knows": (pod(65, termination(exitCode=65, failureClass="Gremlins", message="x")),
     FailureClass.DATA_ERROR, "x"),
    "a message that is not ours": (pod(1, "Traceback\nValueError: boom"), FailureClass.UNKNOWN, "ValueError: boom"),
    "a kill by the kernel": (pod(137, reason="OOMKilled"), FailureClass.OUT_OF_MEMORY_HOST, "OOMKilled"),
    "a kill by somebody": (pod(137), FailureClass.UNKNOWN, "killed by signal 9"),
    "preempted by a more important pod": (pod(137, disruption=("PreemptionByScheduler", "preempting to accommodate")),
     FailureClass.PREEMPTED, "accommodate"),
    "a drained node": (pod(75, disruption=("EvictionByEvictionAPI", "evicted")), FailureClass.MAINTENANCE, "evicted"),
    "a node that does not answer": (pod(1, disruption=("DeletionByTaintManager", "node.kubernetes.io/unreachable")),
     FailureClass.HOST_ERROR, "unreachable"),
    "a node that is gone": (pod(disruption=("DeletionByPodGC", "node not found")), FailureClass.HOST_ERROR,
     "node not found"),
    "a spot node that is shut down": (
        pod(143, disruption=("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")),
        FailureClass.PREEMPTED,
        "node shutdown",
    ),
    "a node without memory": (pod(137, disruption=("TerminationByKubelet", EVICTED)), FailureClass.OUT_OF_MEMORY_HOST,
     "low on resource"),
    "a disrupted pod with a fatal code": (pod(74, disruption=("EvictionByEvictionAPI", "evicted")),
     FailureClass.MAINTENANCE, "evicted"),
    "a pod that never had a container": (refused_by_the_node(), FailureClass.HOST_ERROR, "UnexpectedAdmissionError"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_failed_pod_has_a_class_and_a_reason(name: str) -> None:
    classified = pod_failure(CASES[name][0])
    assert classified.kind == CASES[name][1]
    assert CASES[name][2] in classified.message
    assert (classified.pod, classified.attempt) == ("p-0", 2)


@pytest.mark.parametrize("code", sorted(EXIT_CLASSES))
def test_every_exit_code_of_the_trainer_has_its_class(code: int) -> None:
    classified = pod_failure(pod(code))
    assert (classified.kind, classified.exit_code) == (EXIT_CLASSES[code], code)


def over_memory(container: str, resources: Manifest, field: str = "containerStatuses") -> Manifest:
    killed = pod(137, reason="OOMKilled")
    (status,) = killed["status"].pop("containerStatuses")
    killed["status"] |= {field: [{**status, "name": container}]}
    kind = "initContainers" if field.startswith("init") else "containers"
    return {**killed, "spec": {"containers": [], kind: [{"name": container, "resources": resources}]}}


@pytest.mark.parametrize(
    ("container", "resources", "field", "words"),
    [
        ("trainer", {"limits": {"memory": "64Gi"}}, "containerStatuses", "limit of 64Gi (spec.resources.trainer."),
        ("trainer-1", {"limits": {"memory": "64Gi"}}, "containerStatuses", "(spec.resources.trainer.limits.memory;"),
        ("trainer", {"requests": {"memory": "1Gi"}}, "containerStatuses",
         "has no limit, spec.resources.trainer.requests.memory is 1Gi (OOMKilled)"),
        ("preflight", {"limits": {"memory": "6Gi"}}, "containerStatuses", "(spec.resources.preflight.limits.memory;"),
        ("pathways-proxy", {"limits": {"memory": "9G"}}, "initContainerStatuses", "(spec.resources.pathwaysProxy."),
        ("fetch", {"limits": {"memory": "1G"}}, "initContainerStatuses", "resources of fetch in spec.pod.init"),
    ],
)  # fmt: skip
def test_a_container_out_of_memory_names_its_limit_and_where_to_raise_it(
    container: str, resources: Manifest, field: str, words: str
) -> None:
    classified = pod_failure(over_memory(container, resources, field))
    assert classified is not None
    assert classified.kind is FailureClass.OUT_OF_MEMORY_HOST
    assert words in classified.message


def test_a_pod_over_its_storage_limit_names_the_field() -> None:
    full = pod(137) | {"spec": {"containers": [{"name": "trainer"}]}}
    words = 'Container trainer exceeded its local ephemeral storage limit "1Gi". '
    full["status"] |= {"reason": "Evicted", "message": words}
    classified = pod_failure(full)
    assert classified is not None
    assert classified.message == f"Evicted: {words[:-2]} (spec.resources.trainer.limits.ephemeral-storage)"


def test_a_running_pod_did_not_fail() -> None:
    assert pod_failure({"metadata": {"name": "p"}, "status": {"phase": "Running"}}) is None
    assert pod_failure({"metadata": {"name": "p"}}) is None


def test_one_of_two_containers_is_enough() -> None:
    both = pod(0)
    second = {"terminated": {"exitCode": 66, "finishedAt": "2026-01-01T00:00:08Z"}}
    both["status"] |= {"phase": "Running"}
    both["status"]["containerStatuses"].append({"name": "trainer-1", "state": second})
    classified = pod_failure(both)
    assert classified.kind == FailureClass.USER_CODE


def failure(pod_name: str, kind: FailureClass, time: str, attempt: int = 0) -> PodFailure:
    return PodFailure(kind, "why", pod_name, attempt, 1, time)


def test_the_cause_is_the_earliest_that_explains_itself() -> None:
    failures = [
        failure("a", FailureClass.UNKNOWN, "2026-01-01T00:00:01Z"),
        failure("b", FailureClass.DATA_ERROR, "2026-01-01T00:00:02Z"),
        failure("c", FailureClass.STORAGE, "2026-01-01T00:00:03Z"),
        failure("d", FailureClass.CONFIG_ERROR, "2026-01-01T00:00:00Z", attempt=1),
    ]
    first = cause(failures, 0)
    assert first.pod == "b"
    assert cause(failures, 7) is None


def test_the_jobsets_rule_says_whether_a_free_or_a_charged_failure_is_meant() -> None:
    failures = [
        failure("peer", FailureClass.HANG, "2026-01-01T00:00:01Z"),
        failure("host", FailureClass.HOST_ERROR, "2026-01-01T00:00:02Z"),
    ]
    free, charged = cause(failures, 0, charged=False), cause(failures, 0, charged=True)
    assert (free.pod, charged.pod) == ("host", "peer")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ImagePullBackOff", FailureClass.IMAGE_PULL),
        ("ErrImagePull", FailureClass.IMAGE_PULL),
        ("InvalidImageName", FailureClass.IMAGE_PULL),
        ("CreateContainerConfigError", FailureClass.CONFIG_ERROR),
        ("ContainerCreating", None),
        ("PodInitializing", None),
    ],
)
def test_what_keeps_a_container_from_starting(reason: str, kind: FailureClass | None) -> None:
    waiting = {"reason": reason, "message": "in the words of the registry"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"containerStatuses": [{"state": {"waiting": waiting}}], "conditions": [scheduled]}
    classified = start_failure({"metadata": {"name": "p"}, "status": status})
    assert (classified.kind if classified else None) == kind
    if classified:
        assert "in the words of the registry" in classified.message
        assert classified.since == "2026-01-01T00:00:00Z"


def test_the_exit_code_of_a_pathways_worker_is_not_one_of_the_trainers() -> None:
    worker = pod(65)
    worker["metadata"]["labels"][labels.REPLICATED_JOB_NAME] = names.PATHWAYS_WORKER
    failure = pod_failure(worker)
    assert (failure.kind, failure.message) == (FailureClass.UNKNOWN, "a Pathways worker ended with exit code 65")


def test_a_kill_for_memory_keeps_the_end_of_the_log_because_the_pod_goes() -> None:
    failure = pod_failure(pod(137, "step 41\nloading shard 12 of 30", reason="OOMKilled"))
    assert failure is not None
    assert (failure.kind, failure.log) == (FailureClass.OUT_OF_MEMORY_HOST, "step 41\nloading shard 12 of 30")
