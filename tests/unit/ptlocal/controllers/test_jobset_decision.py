"""The JobSet controller's decisions, table by table: observed objects in, writes out."""

import hashlib
from typing import Any

import pytest

from ptkube.resources import Manifest
from ptlocal import jobset_names
from ptlocal.controllers.jobset.jobset_decision import Decision, decide

NOW = "2026-01-01T00:10:00Z"
EARLIER = "2026-01-01T00:00:00Z"


def jobset(*replicated: Manifest, status: Manifest | None = None, **spec: Any) -> Manifest:
    jobs = list(replicated) or [group("w", 2)]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
        "spec": {"replicatedJobs": jobs, **spec},
        **({"status": status} if status else {}),
    }


def group(name: str, replicas: int = 1, **more: Any) -> Manifest:
    pod = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    return {"name": name, "replicas": replicas, "template": {"spec": {"parallelism": 2, "template": pod}}, **more}


def job(
    owner: str,
    index: int,
    *,
    state: str = "",
    attempt: int = 0,
    ready: int = 0,
    active: int = 0,
    suspended: bool = False,
    reason: str = "BackoffLimitExceeded",
    message: str = "",
    at: str = EARLIER,
    deleting: bool = False,
) -> Manifest:
    kind = {"failed": "Failed", "complete": "Complete"}.get(state)
    condition = {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at}
    meta: Manifest = {
        "name": f"js-{owner}-{index}",
        "namespace": "ns",
        "uid": f"{owner}{index}",
        "labels": {jobset_names.REPLICATED_JOB: owner, jobset_names.RESTART_ATTEMPT: str(attempt)},
    }
    if deleting:
        meta["deletionTimestamp"] = NOW
    return {
        "metadata": meta,
        "spec": {"parallelism": 2, "completions": 2, "suspend": suspended},
        "status": {"ready": ready, "active": active, "conditions": [condition] if kind else []},
    }


def run(js: Manifest, *jobs: Manifest, has_service: bool = True) -> Decision:
    return decide(js, list(jobs), has_service=has_service, now=NOW)


def created(decision: Decision) -> list[str]:
    return [j["metadata"]["name"] for j in decision.create_jobs]


def condition(decision: Decision, kind: str) -> Manifest:
    return next(c for c in decision.status["conditions"] if c["type"] == kind)


def test_a_new_jobset_gets_its_service_and_all_jobs() -> None:
    decision = run(jobset(group("driver"), group("w", 2)), has_service=False)
    assert created(decision) == ["js-driver-0", "js-w-0", "js-w-1"]
    service = decision.create_service
    assert service["metadata"]["name"] == "js"
    assert service["spec"] == {
        "clusterIP": "None",
        "selector": {jobset_names.NAME: "js"},
        "publishNotReadyAddresses": True,
    }


def test_a_child_job_carries_the_real_labels_as_annotations_too() -> None:
    js = jobset(group("driver"), group("w", 2, groupName="g"), coordinator={"replicatedJob": "driver"})
    child = run(js).create_jobs[2]
    expected = {
        "jobset.sigs.k8s.io/jobset-name": "js",
        "jobset.sigs.k8s.io/jobset-uid": "u1",
        "jobset.sigs.k8s.io/replicatedjob-name": "w",
        "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
        "jobset.sigs.k8s.io/global-replicas": "3",
        "jobset.sigs.k8s.io/job-index": "1",
        "jobset.sigs.k8s.io/job-global-index": "2",
        "jobset.sigs.k8s.io/job-key": hashlib.sha1(b"ns/js-w-1").hexdigest(),
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "jobset.sigs.k8s.io/group-name": "g",
        "jobset.sigs.k8s.io/group-replicas": "2",
        "jobset.sigs.k8s.io/job-group-index": "1",
        "jobset.sigs.k8s.io/coordinator": "js-driver-0-0.js",
    }
    pod = child["spec"]["template"]
    for meta in (child["metadata"], pod["metadata"]):
        assert meta["labels"] == expected
        assert meta["annotations"] == expected
    assert pod["spec"]["subdomain"] == "js"
    assert child["spec"]["completionMode"] == "Indexed"
    assert child["spec"]["suspend"] is False
    assert pod["spec"]["restartPolicy"] == "OnFailure"
    owner = child["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("JobSet", "u1", True)


def test_existing_jobs_are_not_created_again_also_not_those_on_their_way_out() -> None:
    assert created(run(jobset(), job("w", 0))) == ["js-w-1"]
    js = jobset(status={"restarts": 1}, failurePolicy={"maxRestarts": 1})
    decision = run(js, job("w", 0, attempt=0), job("w", 1, attempt=0, deleting=True))
    assert created(decision) == []
    assert [j["metadata"]["name"] for j in decision.delete_jobs] == ["js-w-0"]


def test_a_subdomain_and_disabled_hostnames_are_honoured() -> None:
    decision = run(jobset(network={"subdomain": "net"}), has_service=False)
    assert decision.create_service["metadata"]["name"] == "net"
    decision = run(jobset(network={"enableDNSHostnames": False}), has_service=False)
    assert decision.create_service is None
    assert "subdomain" not in decision.create_jobs[0]["spec"]["template"]["spec"]


@pytest.mark.parametrize("field", ["deletionTimestamp", "managedBy"])
def test_a_jobset_that_is_leaving_or_somebody_elses_is_left_alone(field: str) -> None:
    js = jobset()
    if field == "managedBy":
        js["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    else:
        js["metadata"][field] = NOW
    assert run(js, has_service=False) == Decision()


def test_counts_of_each_replicated_job_stand_in_the_status() -> None:
    decision = run(
        jobset(group("a", 3), group("b", 1)),
        job("a", 0, ready=2, active=2),
        job("a", 1, ready=1, active=2),
        job("a", 2, suspended=True),
        job("b", 0, state="complete"),
    )
    assert decision.status["replicatedJobsStatus"] == [
        {"name": "a", "ready": 1, "succeeded": 0, "failed": 0, "active": 2, "suspended": 1},
        {"name": "b", "ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0},
    ]


def test_the_same_observation_twice_writes_once() -> None:
    jobs = [job("w", 0, ready=2, active=2), job("w", 1, ready=2, active=2)]
    first = run(jobset(), *jobs)
    assert first.status is not None
    assert run(jobset(status=first.status), *jobs).status is None


@pytest.mark.parametrize(
    ("policy", "complete", "expected"),
    [
        ({"operator": "All"}, ["a0"], None),
        ({"operator": "All"}, ["a0", "a1", "b0"], "Completed"),
        ({"operator": "All", "targetReplicatedJobs": ["b"]}, ["b0"], "Completed"),
        ({"operator": "All", "targetReplicatedJobs": ["b"]}, ["a0", "a1"], None),
        ({"operator": "Any"}, ["a1"], "Completed"),
        ({"operator": "Any", "targetReplicatedJobs": ["b"]}, ["a1"], None),
    ],
)
def test_success_policy(policy: Manifest, complete: list[str], expected: str | None) -> None:
    js = jobset(group("a", 2), group("b", 1), successPolicy=policy)
    jobs = [
        job(name, index, state="complete" if f"{name}{index}" in complete else "")
        for name, index in (("a", 0), ("a", 1), ("b", 0))
    ]
    decision = run(js, *jobs)
    assert decision.status.get("terminalState") == expected
    if expected:
        done = condition(decision, "Completed")
        assert (done["reason"], done["message"]) == ("AllJobsCompleted", "jobset completed successfully")


POD_POLICY = {"reason": "PodFailurePolicy"}
DISRUPTED = "Pod ns/p has condition DisruptionTarget matching FailJob rule at index 0"
EXITED = "Container main for pod ns/p failed with exit code 65 matching FailJob rule at index 1"
FREE = {
    "name": "free",
    "action": "RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy"],
    "onJobFailureMessagePatterns": ["DisruptionTarget"],
}
FATAL = {
    "name": "fatal",
    "action": "FailJobSet",
    "onJobFailureReasons": ["PodFailurePolicy"],
    "onJobFailureMessagePatterns": ["exit code (64|65)"],
}


@pytest.mark.parametrize(
    ("policy", "status", "failure", "outcome", "restarts", "charged"),
    [
        (None, {}, {}, "FailedJobs", 0, 0),
        ({"maxRestarts": 0}, {}, {}, "ReachedMaxRestarts", 0, 0),
        ({"maxRestarts": 1}, {}, {}, "restart", 1, 1),
        ({"maxRestarts": 1}, {"restarts": 1, "restartsCountTowardsMax": 1}, {"attempt": 1}, "ReachedMaxRestarts", 1, 1),
        ({"maxRestarts": 0, "rules": [FREE, FATAL]}, {}, {**POD_POLICY, "message": DISRUPTED}, "restart", 1, 0),
        ({"maxRestarts": 5, "rules": [FREE, FATAL]}, {}, {**POD_POLICY, "message": EXITED},
         "FailJobSetFailurePolicyAction", 0, 0),
        ({"maxRestarts": 5, "rules": [FREE, FATAL]}, {}, {"message": "other"}, "restart", 1, 1),
        ({"maxRestarts": 5, "rules": [{**FATAL, "targetReplicatedJobs": ["x"]}]}, {}, {**POD_POLICY, "message": EXITED},
         "restart", 1, 1),
        ({"maxRestarts": 5, "rules": [{**FATAL, "onJobFailureMessagePatterns": ["("]}]}, {},
         {**POD_POLICY, "message": EXITED}, "restart", 1, 1),
        ({"maxRestarts": 5, "rules": [{"name": "r", "action": "RestartJob"}]}, {}, {}, "UnsupportedFailurePolicyAction",
         0, 0),
    ],
)  # fmt: skip
def test_failure_policy(
    policy: Manifest | None, status: Manifest, failure: Manifest, outcome: str, restarts: int, charged: int
) -> None:
    spec = {"failurePolicy": policy} if policy else {}
    decision = run(jobset(status=status or None, **spec), job("w", 0, state="failed", **failure), job("w", 1))
    assert decision.status["restarts"] == restarts
    assert decision.status["restartsCountTowardsMax"] == charged
    assert decision.create_jobs == []
    if outcome == "restart":
        assert condition(decision, "RestartingJobSet")["status"] == "True"
        assert "terminalState" not in decision.status
    else:
        assert condition(decision, "Failed")["reason"] == outcome
        assert decision.status["terminalState"] == "Failed"
        assert condition(decision, "Failed")["message"].endswith("(first failed job: js-w-0)")


def test_the_first_rule_that_any_job_meets_wins_and_names_the_job_that_failed_first() -> None:
    js = jobset(group("w", 3), failurePolicy={"maxRestarts": 0, "rules": [FREE]})
    decision = run(
        js,
        job("w", 0, state="failed", message="other", at="2026-01-01T00:00:01Z"),
        job("w", 1, state="failed", reason="PodFailurePolicy", message=DISRUPTED, at="2026-01-01T00:00:03Z"),
        job("w", 2, state="failed", reason="PodFailurePolicy", message=DISRUPTED, at="2026-01-01T00:00:02Z"),
    )
    restarting = condition(decision, "RestartingJobSet")
    assert restarting["reason"] == "FailurePolicy_free"
    assert restarting["message"] == (
        "applying RestartJobSetAndIgnoreMaxRestarts failure policy action (first failed job: js-w-2)"
    )


def test_after_a_restart_old_jobs_go_and_new_ones_carry_the_attempt() -> None:
    js = jobset(status={"restarts": 1, "restartsCountTowardsMax": 1}, failurePolicy={"maxRestarts": 1})
    old = [job("w", 0, state="failed"), job("w", 1, active=2)]
    assert [j["metadata"]["name"] for j in run(js, *old).delete_jobs] == ["js-w-0", "js-w-1"]
    fresh = run(js).create_jobs
    assert {j["metadata"]["labels"][jobset_names.RESTART_ATTEMPT] for j in fresh} == {"1"}


def test_blocking_recreate_waits_until_every_old_job_is_gone() -> None:
    policy = {"maxRestarts": 1, "restartStrategy": "BlockingRecreate"}
    js = jobset(status={"restarts": 1}, failurePolicy=policy)
    assert created(run(js, job("w", 0, attempt=0, deleting=True))) == []
    js["spec"]["failurePolicy"]["restartStrategy"] = "Recreate"
    assert created(run(js, job("w", 0, attempt=0, deleting=True))) == ["js-w-1"]


def test_restarting_ends_when_all_jobs_are_ready() -> None:
    restarting = {"type": "RestartingJobSet", "status": "True", "reason": "x", "message": "", "lastTransitionTime": NOW}
    js = jobset(status={"restarts": 1, "restartsCountTowardsMax": 1, "conditions": [restarting]})
    jobs = [job("w", i, attempt=1, ready=2, active=2) for i in range(2)]
    assert condition(run(js, *jobs), "RestartingJobSet")["reason"] == "JobsReady"


def test_a_suspended_jobset_has_suspended_jobs() -> None:
    decision = run(jobset(suspend=True), job("w", 0, active=2))
    assert [j["metadata"]["name"] for j in decision.suspend_jobs] == ["js-w-0"]
    assert decision.create_jobs[0]["spec"]["suspend"] is True
    suspended = condition(decision, "Suspended")
    assert (suspended["status"], suspended["reason"], suspended["message"]) == (
        "True",
        "SuspendedJobs",
        "jobset is suspended",
    )


def test_resuming_unsuspends_every_job_and_says_so() -> None:
    old = {"type": "Suspended", "status": "True", "reason": "x", "message": "", "lastTransitionTime": EARLIER}
    decision = run(jobset(status={"conditions": [old]}), job("w", 0, suspended=True), job("w", 1, suspended=True))
    assert [j["metadata"]["name"] for j, _ in decision.resume_jobs] == ["js-w-0", "js-w-1"]
    resumed = condition(decision, "Suspended")
    assert (resumed["status"], resumed["reason"]) == ("False", "ResumeJobs")
    assert resumed["lastTransitionTime"] == NOW


def test_a_jobset_never_suspended_has_no_suspended_condition() -> None:
    decision = run(jobset())
    assert not decision.status.get("conditions")


def test_in_order_startup_makes_one_group_at_a_time() -> None:
    js = jobset(group("a"), group("b"), startupPolicy={"startupPolicyOrder": "InOrder"})
    first = run(js)
    assert created(first) == ["js-a-0"]
    assert condition(first, "StartupPolicyInProgress")["status"] == "True"
    js["status"] = first.status
    assert created(run(js, job("a", 0, ready=1))) == []
    second = run(js, job("a", 0, ready=2))
    assert created(second) == ["js-b-0"]
    js["status"] = second.status
    done = run(js, job("a", 0, ready=2), job("b", 0, ready=2))
    assert condition(done, "StartupPolicyCompleted")["status"] == "True"
    assert condition(done, "StartupPolicyInProgress")["status"] == "False"


@pytest.mark.parametrize(
    ("wanted", "first", "expected"),
    [
        ("Ready", job("a", 0, ready=1), []),
        ("Ready", job("a", 0, ready=2), ["js-b-0"]),
        ("Complete", job("a", 0, ready=2), []),
        ("Complete", job("a", 0, state="complete"), ["js-b-0"]),
    ],
)
def test_depends_on_holds_a_group_back(wanted: str, first: Manifest, expected: list[str]) -> None:
    js = jobset(group("a"), group("b", dependsOn=[{"name": "a", "status": wanted}]))
    assert created(run(js, first)) == expected


def finished(kind: str, at: str) -> Manifest:
    return {"type": kind, "status": "True", "reason": "x", "message": "", "lastTransitionTime": at}


def test_a_finished_jobset_loses_its_active_jobs_and_creates_nothing() -> None:
    js = jobset(status={"conditions": [finished("Failed", EARLIER)], "terminalState": "Failed"})
    decision = run(js, job("w", 0, active=1), has_service=False)
    assert [j["metadata"]["name"] for j in decision.delete_jobs] == ["js-w-0"]
    assert (decision.create_service, decision.create_jobs) == (None, [])


@pytest.mark.parametrize(("ttl_s", "expired", "again_s"), [(600, True, None), (601, False, 1.0), (None, False, None)])
def test_ttl_counts_from_the_end(ttl_s: int | None, expired: bool, again_s: float | None) -> None:
    spec = {} if ttl_s is None else {"ttlSecondsAfterFinished": ttl_s}
    js = jobset(status={"conditions": [finished("Completed", EARLIER)]}, **spec)
    decision = run(js)
    assert (decision.delete_jobset, decision.again_s) == (expired, again_s)
