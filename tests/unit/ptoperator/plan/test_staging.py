"""Staging in the operator: what its pod reports, and what becomes of the job."""

import json
from typing import Any

import pytest
import yaml
from tests.builders.operator.world import NAMESPACE, Operator, job_manifest

from ptapi.load import parse_job
from ptapi.status import Condition, PostTrainJobStatus
from ptkube.resources import PODS, POSTTRAINJOBS, Manifest
from ptoperator.kube import labels
from ptoperator.render import render
from ptoperator.settings import Settings

NAME = "llama"
MODEL = {"uri": "hf://org/model", "revision": "v1", "stage": True, "tokenSecretRef": {"name": "hf"}}
COPY = "gs://bucket/runs/.models/org--model@0123456789abcdef"
STAGED = {"model": MODEL, "output": {"uri": "gs://bucket/runs"}}


def begin(operator: Operator, **spec: Any) -> Manifest:
    """The job waits for its model; the pod that stages it."""
    operator.api.create(POSTTRAINJOBS, job_manifest(NAME, **{**STAGED, "accelerator": {"type": "v6e-4"}, **spec}))
    turn(operator)
    (pod,) = stagings(operator)
    return pod


def turn(operator: Operator) -> None:
    """Operator and Job controller do what they have to."""
    operator.work()
    operator.world.run_jobs()
    operator.work()


def stagings(operator: Operator) -> list[Manifest]:
    return [pod for pod in operator.world.pods if labels.is_of_stage(pod)]


def ends(operator: Operator, pod: Manifest, code: int, **report: Any) -> None:
    operator.world.exit(pod, code, json.dumps({"exitCode": code, **report}))
    turn(operator)


def status(operator: Operator) -> PostTrainJobStatus:
    return PostTrainJobStatus.model_validate(operator.api.kinds("PostTrainJob")[0]["status"])


def staged(operator: Operator) -> Condition:
    return next(each for each in status(operator).conditions if each.type == "Staged")


def reasons(operator: Operator) -> list[str]:
    return [event["reason"] for event in operator.api.kinds("Event")]


def test_the_model_is_staged_before_preflight_and_chips_and_the_pods_read_the_copy(operator: Operator) -> None:
    pod = begin(operator)
    assert status(operator).phase == "Preflight"
    assert (staged(operator).status, staged(operator).reason) == ("False", "Staging")
    assert "copying hf://org/model into the bucket" in staged(operator).message
    assert operator.api.kinds("ConfigMap") == operator.api.kinds("JobSet") == operator.world.preflights == []
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["stage", "hf://org/model", "gs://bucket/runs/.models", "--revision=v1", "--report"]
    assert next(each for each in container["env"] if each["name"] == "HF_TOKEN")["valueFrom"]["secretKeyRef"]
    ends(operator, pod, 0, staged=COPY)
    assert (staged(operator).status, staged(operator).reason) == ("True", "Staged")
    assert staged(operator).message == f"the job reads hf://org/model from {COPY}"
    (file,) = operator.api.kinds("ConfigMap")
    model = yaml.safe_load(file["data"]["job.yaml"])["spec"]["model"]
    assert (model["uri"], model["stage"], "revision" in model) == (COPY, False, False)
    (checked,) = operator.world.preflights
    operator.world.answer(checked, "Fits")
    turn(operator)
    assert len(operator.api.kinds("JobSet")) == 1
    assert (len(stagings(operator)), reasons(operator).count("Staging"), reasons(operator).count("Staged")) == (1, 1, 1)


def test_the_file_that_the_pods_of_a_staged_job_read_is_a_valid_job(operator: Operator) -> None:
    ends(operator, begin(operator), 0, staged=COPY)
    (file,) = operator.api.kinds("ConfigMap")
    assert parse_job(yaml.safe_load(file["data"]["job.yaml"])).spec.model.uri == COPY


def test_a_job_on_cpu_devices_that_skips_preflight_is_staged_too(operator: Operator) -> None:
    pod = begin(operator, accelerator={"type": "cpu-1"})
    assert operator.api.kinds("JobSet") == []
    ends(operator, pod, 0, staged=COPY)
    assert len(operator.api.kinds("JobSet")) == 1


def test_a_gated_model_without_a_token_ends_the_job_at_once_in_the_commands_words(operator: Operator) -> None:
    pod = begin(operator)
    ends(operator, pod, 64, failureClass="ConfigError", message="hf://org/model: you have no access; hint: request it")
    final = status(operator)
    assert (final.phase, final.failure.failure_class, final.failure.exit_code) == ("Failed", "ConfigError", 64)
    failed = next(each for each in final.conditions if each.type == "Failed")
    assert "the model cannot be staged: hf://org/model: you have no access; hint: request it" in failed.message
    assert staged(operator).reason == "StageFailed"
    assert operator.api.kinds("JobSet") == operator.world.preflights == []
    assert len(stagings(operator)) == 1


def test_an_outage_of_the_hub_is_tried_again_and_told(operator: Operator) -> None:
    for number in range(1, 4):
        pod = begin(operator) if number == 1 else next(each for each in stagings(operator) if "exit" not in str(each))
        ends(operator, pod, 68, failureClass="Network", message="hf://org/model: cannot be fetched: 503")
        assert status(operator).phase == "Preflight"
        turn(operator)
        assert f"try {number} failed with Network: hf://org/model: cannot be fetched: 503" in staged(operator).message
    pod = next(each for each in stagings(operator) if "exit" not in str(each))
    ends(operator, pod, 0, staged=COPY)
    assert (staged(operator).reason, reasons(operator).count("Staging")) == ("Staged", 1)
    assert status(operator).restarts == {}


def test_an_outage_that_outlasts_all_tries_ends_the_job_as_one_of_the_network(operator: Operator) -> None:
    pod = begin(operator)
    for _ in range(11):
        ends(operator, pod, 68, failureClass="Network", message="cannot be fetched: 503")
        pod = next((each for each in stagings(operator) if "exit" not in str(each)), pod)
    operator.world.tick(60)
    turn(operator)
    final = status(operator)
    assert (final.phase, final.failure.failure_class) == ("Failed", "Network")
    assert (len(stagings(operator)), operator.api.kinds("JobSet")) == (11, [])


def test_an_image_that_cannot_be_pulled_ends_the_job_after_a_while(operator: Operator) -> None:
    pod = begin(operator)
    operator.world.cannot_pull(pod)
    operator.work()
    assert "manifest for trainer:9 not found" in staged(operator).message
    operator.world.tick(operator.settings.start_failure_seconds + 10)
    operator.work()
    assert (status(operator).phase, status(operator).failure.failure_class) == ("Failed", "ImagePull")


def test_a_suspended_job_stops_copying_and_goes_on_when_it_is_resumed(operator: Operator) -> None:
    begin(operator)
    job = operator.api.kinds("PostTrainJob")[0]
    operator.api.patch(POSTTRAINJOBS, NAME, NAMESPACE, {"spec": {"runPolicy": {"suspend": True}}})
    turn(operator)
    assert operator.api.kinds("Job") == []
    operator.world.collect()
    operator.world.reap()
    assert stagings(operator) == []
    operator.api.patch(POSTTRAINJOBS, job["metadata"]["name"], NAMESPACE, {"spec": {"runPolicy": {"suspend": False}}})
    turn(operator)
    (pod,) = stagings(operator)
    ends(operator, pod, 0, staged=COPY)
    assert staged(operator).reason == "Staged"


def test_a_finished_pod_that_is_gone_before_it_was_read_costs_a_second_job(operator: Operator) -> None:
    pod = begin(operator)
    operator.world.exit(pod, 0, json.dumps({"exitCode": 0, "staged": COPY}))
    operator.world.run_jobs()
    operator.api.remove((PODS.kind, NAMESPACE, pod["metadata"]["name"]))
    turn(operator)
    operator.world.tick(10)
    turn(operator)
    (second,) = stagings(operator)
    ends(operator, second, 0, staged=COPY)
    assert staged(operator).reason == "Staged"


@pytest.mark.parametrize("stage", [True, False])
def test_what_is_rendered_shows_the_job_that_copies_first(stage: bool) -> None:
    job = parse_job(job_manifest(NAME, **{**STAGED, "model": MODEL | {"stage": stage}}))
    kinds = [(each["kind"], each["metadata"]["name"]) for each in render(job, Settings())]
    assert [kind for kind, _ in kinds] == [*(["Job"] if stage else []), "ConfigMap", "JobSet"]
    assert kinds[0][1].endswith("-stage") == stage
