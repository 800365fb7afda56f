"""The Job controller's decisions: which pods to make, count, let go and delete, and when a Job is over."""

from typing import Any

import pytest

from ptkube.resources import Manifest
from ptlocal.controllers.job.indexes import format_indexes, parse_indexes
from ptlocal.controllers.job.job_decision import Decision, decide
from ptlocal.controllers.job.job_pods import FINALIZER, INDEX, build_pod

NOW = "2026-01-01T00:10:00Z"
EARLIER = "2026-01-01T00:00:00Z"


def job(status: Manifest | None = None, **spec: Any) -> Manifest:
    template = spec.pop("template", {"spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}})
    defaults = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "metadata": {"name": "j", "namespace": "ns", "uid": "ju"},
        "spec": {**defaults, **spec, "template": template},
        "status": status or {"startTime": EARLIER},
    }


def pod(
    index: int = 0,
    phase: str = "Running",
    *,
    uid: str = "",
    leaving: bool = False,
    tracked: bool = True,
    code: int | None = None,
    ended: str = EARLIER,
    disrupted: bool = False,
    ready: bool = False,
    restarts: int = 0,
) -> Manifest:
    state = {} if code is None else {"terminated": {"exitCode": code, "finishedAt": ended}}
    conditions = [{"type": "Ready", "status": str(ready)}]
    if disrupted:
        conditions.append({"type": "DisruptionTarget", "status": "True"})
    meta: Manifest = {
        "name": f"j-{index}-x",
        "namespace": "ns",
        "uid": uid or f"p{index}",
        "annotations": {INDEX: str(index)},
        "finalizers": [FINALIZER] if tracked else [],
        "resourceVersion": "1",
    }
    if leaving:
        meta["deletionTimestamp"] = NOW
    containers = [{"name": "main", "state": state, "restartCount": restarts}]
    return {"metadata": meta, "status": {"phase": phase, "conditions": conditions, "containerStatuses": containers}}


def run(j: Manifest, *pods: Manifest) -> Decision:
    return decide(j, list(pods), NOW)


def condition(decision: Decision, kind: str) -> Manifest | None:
    return next((c for c in decision.status.get("conditions") or [] if c["type"] == kind), None)


def to_the_end(j: Manifest, pods: list[Manifest]) -> Manifest:
    """Apply decisions as a server would until nothing changes; returns the final Job."""
    for _ in range(10):
        decision = decide(j, pods, NOW)
        if decision.status is not None:
            j = {**j, "status": decision.status}
        released = {p["metadata"]["uid"] for p in decision.release}
        deleted = {p["metadata"]["uid"] for p in decision.delete}
        if decision.status is None and not released and not deleted:
            break
        for p in pods:
            if p["metadata"]["uid"] in released:
                p["metadata"]["finalizers"] = []
        pods = [p for p in pods if p["metadata"]["uid"] not in deleted]
    return j


@pytest.mark.parametrize("text", ["", "0", "0,1", "0-2", "0-2,4", "1,3,5-7"])
def test_indexes_are_read_and_written_as_kubernetes_does(text: str) -> None:
    assert format_indexes(parse_indexes(text)) == text


def test_a_pod_has_name_prefix_hostname_labels_and_index() -> None:
    j = job(template={"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}})
    p = build_pod(j, 3)
    assert p["metadata"]["generateName"] == "j-3-"
    assert p["spec"]["hostname"] == "j-3"
    assert p["metadata"]["labels"] == {
        "a": "b",
        "batch.kubernetes.io/controller-uid": "ju",
        "controller-uid": "ju",
        "batch.kubernetes.io/job-name": "j",
        "job-name": "j",
        INDEX: "3",
    }
    assert p["metadata"]["annotations"] == {INDEX: "3"}
    env = p["spec"]["containers"][0]["env"]
    assert env[0]["name"] == "JOB_COMPLETION_INDEX"
    assert env[0]["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"
    assert "env" not in j["spec"]["template"]["spec"]["containers"][0], "the template must not be changed"


@pytest.mark.parametrize(
    ("parallelism", "completions", "pods", "status", "expected"),
    [
        (1, 1, [], {}, [0]),
        (2, 4, [], {}, [0, 1]),
        (2, 4, [pod(0)], {}, [1]),
        (2, 4, [pod(1), pod(2)], {"completedIndexes": "0"}, []),
        (3, 4, [pod(1)], {"completedIndexes": "0"}, [2, 3]),
        (4, 4, [pod(0, leaving=True)], {}, [0, 1, 2, 3]),
    ],
)
def test_missing_indexes_are_made_up_to_parallelism(
    parallelism: int, completions: int, pods: list[Manifest], status: Manifest, expected: list[int]
) -> None:
    j = job({"startTime": EARLIER, **status}, parallelism=parallelism, completions=completions, backoffLimit=6)
    assert run(j, *pods).create == expected


def test_with_a_pod_failure_policy_a_leaving_pod_keeps_its_place() -> None:
    j = job(podFailurePolicy={"rules": []})
    assert run(j, pod(0, leaving=True)).create == []


def test_a_pod_too_many_is_let_go_and_deleted() -> None:
    decision = run(job(parallelism=1, completions=2), pod(0), pod(1))
    assert [p["metadata"]["uid"] for p in decision.delete] == ["p1"]
    assert [p["metadata"]["uid"] for p in decision.release] == ["p1"]


def test_success_is_counted_before_the_pod_is_let_go_and_then_the_job_completes() -> None:
    first = run(job(), pod(0, "Succeeded", code=0))
    assert (first.status["succeeded"], first.status["completedIndexes"]) == (1, "0")
    assert [p["metadata"]["uid"] for p in first.release] == ["p0"]
    final = to_the_end(job(), [pod(0, "Succeeded", code=0)])
    kinds = [(c["type"], c["reason"]) for c in final["status"]["conditions"]]
    assert kinds == [("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached")]
    assert final["status"]["completionTime"] == NOW
    assert final["status"]["succeeded"] == 1


def test_the_same_index_twice_counts_once() -> None:
    j = job(parallelism=2, completions=2)
    decision = run(j, pod(0, "Succeeded", code=0, uid="a"), pod(0, "Succeeded", code=0, uid="b"))
    assert decision.status["succeeded"] == 1


def test_a_failure_is_counted_once_however_often_the_controller_dies_in_between() -> None:
    j, failed = job(backoffLimit=6), pod(0, "Failed", code=1)
    first = run(j, failed)
    assert first.status["uncountedTerminatedPods"] == {"failed": ["p0"]}
    again = run({**j, "status": first.status}, failed)  # died before the finalizer was taken off
    assert again.status is None
    assert [p["metadata"]["uid"] for p in again.release] == ["p0"]
    released = pod(0, "Failed", code=1, tracked=False)
    settled = run({**j, "status": first.status}, released)  # died before the count was settled
    assert (settled.status["failed"], settled.status["uncountedTerminatedPods"]) == (1, {})
    assert run({**j, "status": settled.status}, released).status is None


def test_backoff_limit_exceeded_deletes_the_rest_and_then_fails() -> None:
    j = job(parallelism=2, completions=2)
    decision = run(j, pod(0, "Failed", code=1), pod(1))
    target = condition(decision, "FailureTarget")
    assert (target["reason"], target["message"]) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert [p["metadata"]["uid"] for p in decision.delete] == ["p1"]
    assert condition(decision, "Failed") is None, "a pod is still running"
    final = to_the_end(j, [pod(0, "Failed", code=1), pod(1)])
    failed = final["status"]["conditions"][-1]
    assert (failed["type"], failed["reason"]) == ("Failed", "BackoffLimitExceeded")


@pytest.mark.parametrize(
    ("rule", "failed", "message", "counted"),
    [
        ({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [64, 65]}}, pod(0, "Failed", code=65),
         "Container main for pod ns/j-0-x failed with exit code 65 matching FailJob rule at index 0", 1),
        ({"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]},
         pod(0, "Failed", code=75, disrupted=True),
         "Pod ns/j-0-x has condition DisruptionTarget matching FailJob rule at index 0", 1),
        ({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [65]}}, pod(0, "Failed", code=1), None, 1),
        ({"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [65]}}, pod(0, "Failed", code=1),
         "Container main for pod ns/j-0-x failed with exit code 1 matching FailJob rule at index 0", 1),
        ({"action": "FailJob", "onExitCodes": {"containerName": "other", "operator": "In", "values": [1]}},
         pod(0, "Failed", code=1), None, 1),
        ({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
         pod(0, "Failed", code=75, disrupted=True), None, 0),
        ({"action": "Count", "onExitCodes": {"operator": "In", "values": [1]}}, pod(0, "Failed", code=1), None, 1),
    ],
)  # fmt: skip
def test_pod_failure_policy_speaks_kubernetes_words(
    rule: Manifest, failed: Manifest, message: str | None, counted: int
) -> None:
    decision = run(job(podFailurePolicy={"rules": [rule]}, backoffLimit=3), failed)
    target = condition(decision, "FailureTarget") if decision.status else None
    assert (target and target["message"]) == message
    if message and target:
        assert target["reason"] == "PodFailurePolicy"
    waiting = ((decision.status or {}).get("uncountedTerminatedPods") or {}).get("failed") or []
    assert len(waiting) == counted


def test_the_first_matching_rule_decides() -> None:
    rules = [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [65]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [65]}},
    ]
    decision = run(job(podFailurePolicy={"rules": rules}), pod(0, "Failed", code=65))
    assert condition(decision, "FailureTarget") is None if decision.status else True


@pytest.mark.parametrize(("failures", "ended_s_ago", "expected"), [(1, 5, []), (1, 11, [0]), (2, 15, []), (2, 21, [0])])
def test_a_failed_pod_is_replaced_after_a_pause_that_doubles(
    failures: int, ended_s_ago: int, expected: list[int]
) -> None:
    ended = f"2026-01-01T00:09:{60 - ended_s_ago:02d}Z"
    j = job({"startTime": EARLIER, "failed": failures}, backoffLimit=6)
    decision = run(j, pod(0, "Failed", code=1, tracked=False, ended=ended))
    assert decision.create == expected
    if not expected:
        assert decision.again_s == 10 * 2 ** (failures - 1) - ended_s_ago


def test_restarts_in_place_count_against_the_limit() -> None:
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "main"}]}}
    assert condition(run(job(template=template, backoffLimit=2), pod(restarts=2)), "FailureTarget")
    assert not condition(run(job(template=template, backoffLimit=2), pod(restarts=1)), "FailureTarget")


def test_suspending_deletes_pods_without_calling_them_failures() -> None:
    decision = run(job(suspend=True), pod(0))
    assert [p["metadata"]["uid"] for p in decision.delete] == ["p0"]
    assert [p["metadata"]["uid"] for p in decision.release] == ["p0"]
    suspended = condition(decision, "Suspended")
    assert (suspended["status"], suspended["reason"], suspended["message"]) == ("True", "JobSuspended", "Job suspended")
    assert decision.status is not None
    assert "startTime" not in decision.status, "the deadline must not run on"
    assert "failed" not in decision.status


def test_resuming_starts_the_clock_anew() -> None:
    old = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": ""}
    decision = run(job({"conditions": [old]}))
    resumed = condition(decision, "Suspended")
    assert (resumed["status"], resumed["reason"], resumed["message"]) == ("False", "JobResumed", "Job resumed")
    assert decision.status["startTime"] == NOW
    assert decision.create == [0]


def test_the_deadline_fails_the_job_and_is_waited_for() -> None:
    late = run(job(activeDeadlineSeconds=600), pod(0))
    target = condition(late, "FailureTarget")
    assert (target["reason"], target["message"]) == (
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )
    assert run(job(activeDeadlineSeconds=601), pod(0)).again_s == 1.0


def test_a_work_queue_winds_down_after_its_first_success() -> None:
    j = job(completionMode="NonIndexed", parallelism=2, completions=None)
    assert run(j).create == [None, None]
    one_done = {"startTime": EARLIER, "succeeded": 1}
    assert run({**j, "status": one_done}, pod(0, uid="b")).create == []
    final = to_the_end({**j, "status": one_done}, [])
    assert final["status"]["conditions"][-1]["type"] == "Complete"


def test_a_job_being_deleted_lets_go_of_its_pods() -> None:
    j = job()
    j["metadata"]["deletionTimestamp"] = NOW
    decision = run(j, pod(0, "Succeeded", code=0), pod(1, tracked=False))
    assert [p["metadata"]["uid"] for p in decision.release] == ["p0"]
    assert decision.status is None
    assert decision.create == []


@pytest.mark.parametrize(("ttl_s", "deleted", "again_s"), [(600, True, None), (660, False, 60.0), (None, False, None)])
def test_ttl_counts_from_the_end(ttl_s: int | None, deleted: bool, again_s: float | None) -> None:
    over = {"type": "Complete", "status": "True", "lastTransitionTime": EARLIER}
    decision = run(job({"conditions": [over]}, ttlSecondsAfterFinished=ttl_s))
    assert (decision.delete_job, decision.again_s) == (deleted, again_s)


def test_ready_and_terminating_pods_are_counted() -> None:
    j = job(parallelism=3, completions=3)
    decision = run(j, pod(0, ready=True), pod(1), pod(2, leaving=True))
    assert (decision.status["active"], decision.status["ready"], decision.status["terminating"]) == (2, 1, 1)
