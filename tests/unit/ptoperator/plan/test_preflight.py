"""Preflight in the operator: what its pod says, and what becomes of the job."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.builders.operator.world import NAMESPACE, Operator, job_manifest

from ptapi.load import parse_job
from ptapi.status import Condition, PostTrainJobStatus
from ptkube.resources import PODS, POSTTRAINJOBS, Manifest
from ptoperator.kube import names
from ptoperator.observe.memory_estimate import Estimates
from ptoperator.render import layout_of, preflight_job
from ptoperator.settings import Settings

NAME = "llama"
CHANGE = {"change": "micro-batches of 8 rows", "settings": "training.microBatchSize=8", "peakGib": 12.1}


def begin(operator: Operator, **spec: Any) -> Manifest:
    """The job waits for its verdict; preflight's pod."""
    fields: dict[str, Any] = {"accelerator": {"type": "v6e-4"}, **spec}
    operator.api.create(POSTTRAINJOBS, job_manifest(NAME, **fields))
    operator.work()
    operator.world.run_jobs()
    operator.work()
    (pod,) = operator.world.preflights
    return pod


def status(operator: Operator) -> PostTrainJobStatus:
    return PostTrainJobStatus.model_validate(operator.api.kinds("PostTrainJob")[0]["status"])


def preflighted(operator: Operator) -> Condition:
    return next(each for each in status(operator).conditions if each.type == "Preflighted")


def passes(operator: Operator, seconds: float) -> None:
    """Time goes by; the Job controller is at work."""
    for _ in range(int(seconds // 10)):
        operator.world.tick(10)
        operator.world.run_jobs()
        operator.work()


def test_a_tpu_job_gets_no_jobset_before_its_verdict_and_one_after(operator: Operator) -> None:
    pod = begin(operator)
    assert status(operator).phase == "Preflight"
    assert preflighted(operator).reason == "PreflightRunning"
    assert operator.api.kinds("JobSet") == []
    operator.world.answer(pod, "Fits")
    operator.work()
    condition = preflighted(operator)
    assert (condition.status, condition.reason) == ("True", "Fits")
    assert condition.message == "peak 29.8 of 95.7 GiB per chip on v5p-128 (64 chips); 13.1 s/step estimated"
    shown = status(operator)
    assert (shown.preflight.outcome, shown.preflight.peak_gib) == ("Fits", 29.8)
    assert shown.phase == "Provisioning"
    assert len(operator.api.kinds("JobSet")) == len(operator.api.kinds("Job")) == 1
    reasons = [event["reason"] for event in operator.api.kinds("Event")]
    assert reasons.count("Fits") == reasons.count("Created") == 1


def test_a_pod_whose_containers_are_being_created_is_not_said_to_run(operator: Operator) -> None:
    pod = begin(operator)
    waiting = {"name": "trainer", "image": "trainer:1", "state": {"waiting": {"reason": "ContainerCreating"}}}
    operator.world.schedule(pod)
    pod["status"]["containerStatuses"] = [waiting]
    operator.api.put(PODS, pod)
    operator.work()
    assert preflighted(operator).message.endswith("the pod is starting")
    operator.world.start(pod)
    operator.work()
    assert preflighted(operator).message.endswith("the pod runs")


def test_a_job_that_does_not_fit_fails_for_good_with_what_to_change(operator: Operator) -> None:
    pod = begin(operator)
    more = {"changes": [CHANGE | {"availableGib": 31.2}], "smallest": ["v6e-16 (16 chips)"]}
    operator.world.answer(pod, "DoesNotFit", **more)
    operator.work()
    shown = status(operator)
    assert shown.phase == "Failed"
    assert (shown.failure.failure_class, shown.failure.exit_code) == ("OutOfMemoryHBM", 70)
    message = next(each.message for each in shown.conditions if each.type == "Failed")
    assert "micro-batches of 8 rows (training.microBatchSize=8): 12.1 of 31.2 GiB" in message
    assert "smallest slices that hold it: v6e-16 (16 chips)" in message
    assert preflighted(operator).reason == "DoesNotFit"
    assert operator.api.kinds("JobSet") == []
    assert shown.job_set == ""
    assert sorted(event["reason"] for event in operator.api.kinds("Event")) == ["Accepted", "OutOfMemoryHBM"]
    passes(operator, 60)
    assert (status(operator).phase, operator.api.kinds("JobSet")) == ("Failed", [])


def test_warn_says_it_and_goes_on(operator: Operator) -> None:
    pod = begin(operator, preflight="Warn")
    operator.world.answer(pod, "DoesNotFit")
    operator.work()
    assert preflighted(operator).reason == "DoesNotFit"
    assert len(operator.api.kinds("JobSet")) == 1
    events = [event for event in operator.api.kinds("Event") if event["reason"] == "DoesNotFit"]
    assert [event["type"] for event in events] == ["Warning"]


def test_a_job_that_is_wrong_in_itself_fails_in_the_trainers_words(operator: Operator) -> None:
    pod = begin(operator)
    message = '{"exitCode": 64, "failureClass": "ConfigError", "message": "spec.training.batchSize: 7: wrong"}'
    operator.world.exit(pod, 64, message)
    operator.work()
    shown = status(operator)
    assert shown.phase == "Failed"
    assert shown.failure.failure_class == "ConfigError"
    assert shown.failure.message == "spec.training.batchSize: 7: wrong"


def test_a_compile_that_is_killed_twice_leaves_the_formulas_verdict(operator: Operator) -> None:
    pod = begin(operator)
    operator.world.answer(pod, "Fits", code=137, stage="formula")
    operator.world.run_jobs()
    operator.work()
    assert status(operator).phase == "Preflight"  # a second try
    second = next(each for each in operator.world.preflights if each["status"]["phase"] == "Pending")
    operator.world.answer(second, "Fits", code=137, stage="formula")
    operator.world.run_jobs()
    passes(operator, 20)
    condition = preflighted(operator)
    assert (condition.status, condition.reason) == ("True", "Fits")
    assert "the compile did not finish" in condition.message
    assert len(operator.api.kinds("JobSet")) == 1


@pytest.mark.parametrize("code", [1, 2, 137])
def test_a_preflight_that_says_nothing_is_no_fault_of_the_job(operator: Operator, code: int) -> None:
    pod = begin(operator)
    operator.world.exit(pod, code)
    for _ in range(3):
        operator.world.run_jobs()
        for other in operator.world.preflights:
            if other["status"]["phase"] == "Pending":
                operator.world.exit(other, code)
        passes(operator, 10)
    assert preflighted(operator).reason == "Undecided"
    assert "the job continues without a verdict" in preflighted(operator).message
    assert len(operator.api.kinds("JobSet")) == 1


def test_a_preflight_without_a_node_is_given_up_and_its_pod_goes(operator: Operator) -> None:
    begin(operator)
    passes(operator, Settings().start_failure_seconds - 20)
    assert status(operator).phase == "Preflight"
    passes(operator, 40)
    assert preflighted(operator).reason == "Undecided"
    assert len(operator.api.kinds("JobSet")) == 1
    assert operator.api.kinds("Job") == []


def test_an_api_server_that_refuses_the_job_is_no_fault_of_it(operator: Operator, monkeypatch: Any) -> None:
    from ptkube.errors import Forbidden

    create = operator.api.create

    def refuse(r: Any, body: Manifest) -> Manifest:
        if r.kind == "Job":
            raise Forbidden(403, "Forbidden", "jobs.batch is forbidden")
        return create(r, body)

    monkeypatch.setattr(operator.api, "create", refuse)
    create(POSTTRAINJOBS, job_manifest(NAME, accelerator={"type": "v6e-4"}))
    operator.work()
    assert preflighted(operator).reason == "Undecided"
    assert "jobs.batch is forbidden" in preflighted(operator).message
    assert len(operator.api.kinds("JobSet")) == 1


def test_suspend_stops_it_and_resuming_begins_anew(operator: Operator) -> None:
    begin(operator)
    policy = {"spec": {"runPolicy": {"suspend": True}}}
    operator.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, policy)
    operator.work()
    assert status(operator).phase == "Suspended"
    assert operator.api.kinds("Job") == []
    operator.world.collect()
    operator.world.reap()
    operator.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, {"spec": {"runPolicy": {"suspend": False}}})
    operator.work()
    operator.world.run_jobs()
    assert status(operator).phase == "Preflight"
    operator.world.answer(operator.world.preflights[0], "Fits")
    operator.work()
    assert len(operator.api.kinds("JobSet")) == 1


def test_a_verdict_is_contended_for_once_in_a_jobs_life(operator: Operator) -> None:
    operator.world.answer(begin(operator), "Fits")
    operator.work()
    jobset = operator.api.kinds("JobSet")[0]["metadata"]["name"]
    operator.api.remove(("JobSet", NAMESPACE, jobset))
    operator.api.remove(("Job", NAMESPACE, operator.api.kinds("Job")[0]["metadata"]["name"]))
    operator.world.collect()
    operator.news.add((NAMESPACE, NAME))
    operator.work()
    assert len(operator.api.kinds("JobSet")) == 1
    assert operator.api.kinds("Job") == []


@pytest.mark.parametrize(
    ("accelerator", "chosen", "mode"),
    [("v6e-4", None, "Enforce"), ("cpu-1", None, "Skip"), ("v6e-4", "Skip", "Skip"), ("cpu-1", "Warn", "Warn")],
)
def test_tpus_are_checked_unless_told_otherwise_and_cpus_only_if_told(
    accelerator: str, chosen: str | None, mode: str
) -> None:
    more = {} if chosen is None else {"preflight": chosen}
    layout = layout_of(parse_job(job_manifest(NAME, accelerator={"type": accelerator}, **more)), Settings())
    assert layout.preflight == mode


def test_a_job_that_skips_preflight_is_told_what_the_formula_says_and_goes_on(operator: Operator) -> None:
    estimates = Estimates()
    operator.estimate = estimates.of
    big = {"model": {"uri": "random://llama3.1-70b"}, "training": {"batchSize": 16, "sequenceLength": 4096}}
    spec: dict[str, Any] = {"accelerator": {"type": "v6e-16"}, "preflight": "Skip"}
    operator.api.create(POSTTRAINJOBS, job_manifest(NAME, **big, **spec))
    operator.work()
    condition = preflighted(operator)
    assert (condition.status, condition.reason) == ("False", "DoesNotFit")
    assert re.fullmatch(
        r"the formula estimates peak \d+\.\d of 31\.2 GiB per chip on v6e-16 \(16 chips\); "
        "spec.preflight is Skip, so the job continues",
        condition.message,
    )
    assert len(operator.api.kinds("JobSet")) == 1
    operator.restart()
    estimates.command = ["false"]
    operator.work()
    assert preflighted(operator) == condition


def test_what_the_formula_cannot_tell_is_left_unsaid_and_asked_once_for_every_shape(
    operator: Operator, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    operator.estimate = Estimates(["sh", "-c", f"echo asked >> {count}; echo no verdict"]).of
    spec: dict[str, Any] = {"accelerator": {"type": "v6e-4"}, "preflight": "Skip"}
    for name in ("one", "two"):
        operator.api.create(POSTTRAINJOBS, job_manifest(name, output={"uri": f"file:///runs/{name}"}, **spec))
    operator.api.create(POSTTRAINJOBS, job_manifest("three", output={"uri": "file:///runs/three"}))
    operator.work()
    messages = [
        each.message
        for job in operator.api.kinds("PostTrainJob")
        for each in PostTrainJobStatus.model_validate(job["status"]).conditions
        if each.type == "Preflighted"
    ]
    assert sorted(messages) == ["CPU devices need no preflight", "spec.preflight is Skip", "spec.preflight is Skip"]
    assert count.read_text() == "asked\n"


def test_its_pod_meets_the_restricted_standard_and_asks_for_no_chips() -> None:
    manifest = job_manifest("a-" + "long-" * 12 + "x", accelerator={"type": "v6e-4"}, training={"batchSize": 8})
    manifest["metadata"]["uid"] = "0b5e"
    job = preflight_job(layout_of(parse_job(manifest), Settings()))
    assert len(job["metadata"]["name"] + "-xxxxx") <= names.DNS_LABEL
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["automountServiceAccountToken"] is False
    assert "nodeSelector" not in pod
    assert "tolerations" not in pod
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "3Gi"}
    assert container["args"] == ["preflight", "/etc/posttrain/job.yaml", "--report", "--time-limit=1200"]
