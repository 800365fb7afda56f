"""`workload clone` and `retry`: a new job from one that exists."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ptapi.load import parse_job
from ptkube.resources import POSTTRAINJOBS

Invoke = Callable[..., Any]
Make = Callable[..., Any]
SPEC = {"rewards": [{"builtin": "gsm8k"}], "training": {"steps": 300}}
OUT_OF_MEMORY = {"failureClass": "OutOfMemoryHBM", "message": "needs 40 GiB, a v5e chip has 16"}
CHECKPOINT = {"step": 40, "uri": "file:///runs/a/checkpoints/40", "time": "2026-01-01T00:00:00Z"}


def created(kube: Any) -> list[dict[str, Any]]:
    return [call[1][0] for call in kube.calls if call[0] == "create"]


def test_a_clone_may_leave_a_field_out(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded", spec={**SPEC, "image": "mine:1"}))
    result = invoke("workload", "clone", "a", "--set", "image=null")
    assert result.code == 0, result.err
    assert created(kube)[0]["spec"].get("image") is None


def test_a_clone_has_the_spec_with_the_changes_and_nothing_of_the_server(
    invoke: Invoke, kube: Any, make_job: Make
) -> None:
    job = make_job("a", "Succeeded", spec={**SPEC, "runPolicy": {"suspend": True}}, labels={"team": "x"})
    job["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "kept"}
    job["metadata"]["finalizers"] = ["posttrain.dev/capacity"]
    before = kube.put(POSTTRAINJOBS, job)
    result = invoke("workload", "clone", "a", "--set", "spec.training.steps=200")
    assert (result.code, result.out) == (0, "posttrainjob.posttrain.dev/a-2 created\n"), result.err
    (copy,) = created(kube)
    assert copy["metadata"] == {
        "name": "a-2", "namespace": "default", "labels": {"team": "x"}, "annotations": {"note": "kept"},
    }  # fmt: skip
    assert (copy["spec"]["training"]["steps"], copy["spec"]["runPolicy"], "status" in copy) == (200, {}, False)
    assert kube.objects[("posttrainjobs", "default", "a")] == before
    parse_job(copy)


def test_a_clone_takes_the_next_free_name_or_the_given_one(invoke: Invoke, kube: Any, make_job: Make) -> None:
    for name in ("a", "a-2", "a-4"):
        kube.put(POSTTRAINJOBS, make_job(name, spec=SPEC))
    assert invoke("workload", "clone", "a", "-o", "name").out == "posttrainjob.posttrain.dev/a-3\n"
    assert invoke("workload", "clone", "a", "--name", "b", "-o", "name").out == "posttrainjob.posttrain.dev/b\n"


def test_a_dry_run_of_a_clone_prints_it_and_creates_nothing(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", spec=SPEC))
    printed = json.loads(invoke("workload", "clone", "a", "--dry-run", "-o", "json").out)
    assert printed["metadata"]["name"] == "a-2"
    assert created(kube) == []


@pytest.mark.parametrize("verb", ["clone", "retry"])
def test_a_copy_into_the_run_directory_of_another_job_is_refused(
    invoke: Invoke, kube: Any, make_job: Make, verb: str
) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", spec=SPEC))
    kube.put(POSTTRAINJOBS, make_job("b", spec=SPEC, namespace="team"))
    result = invoke("workload", verb, "a", "--name", "b")
    assert (result.code, created(kube)) == (2, [])
    assert "spec.output.uri: file:///runs/b is the run directory of job 'b' in namespace 'team'" in result.err
    assert invoke("workload", verb, "a", "--name", "a").code == 2
    assert invoke("workload", verb, "a", "--name", "b", "--set", "output.uri=file:///other").code == 0


@pytest.mark.parametrize("verb", ["clone", "retry"])
def test_a_copy_that_would_be_wrong_is_refused_with_field_and_value(
    invoke: Invoke, kube: Any, make_job: Make, verb: str
) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", spec=SPEC))
    for words, message in (
        (("--set", "training.steps=0"), "spec.training.steps: 0"),
        (("--set", "trainning.steps=3"), "spec.trainning"),
        (("--name", "B"), "lower-case letters"),
    ):
        result = invoke("workload", verb, "a", *words)
        assert (result.code, message in result.err) == (2, True), result.err
    assert created(kube) == []
    assert invoke("workload", verb, "c").code == 3


def test_a_failed_job_goes_on_under_another_name_from_its_newest_checkpoint(
    invoke: Invoke, kube: Any, make_job: Make
) -> None:
    spec = {**SPEC, "checkpoint": {"everySteps": 20}, "training": {"steps": 300, "lora": {"from": "file:///adapters"}}}
    status = {"failure": OUT_OF_MEMORY, "checkpoint": CHECKPOINT, "progress": {"step": 45, "total": 300}}
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", spec=spec, **status))
    result = invoke("workload", "retry", "a", "--set", "training.microBatchSize=8")
    assert (result.code, result.out) == (0, "posttrainjob.posttrain.dev/a-2 created\n"), result.err
    (copy,) = created(kube)
    fork = {"uri": CHECKPOINT["uri"], "state": "full"}
    assert copy["spec"]["checkpoint"] == {"everySteps": 20, "fork": fork}
    assert copy["spec"]["training"] == {"steps": 300, "lora": {}, "microBatchSize": 8}
    assert "job 'a' failed with OutOfMemoryHBM: needs 40 GiB, a v5e chip has 16\n" in result.err
    assert f"the new run goes on from {CHECKPOINT['uri']}\n" in result.err
    assert "--set changes" not in result.err


def test_a_failed_job_without_a_checkpoint_begins_anew_and_that_is_said(
    invoke: Invoke, kube: Any, make_job: Make
) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", spec=SPEC, failure=OUT_OF_MEMORY))
    result = invoke("workload", "retry", "a")
    assert (result.code, "it has no checkpoint of posttrain's trainer: the new run begins at step 0" in result.err) == (
        0,
        True,
    )
    assert "unless the cause is gone it fails again; --set changes fields of spec" in result.err
    assert "checkpoint" not in created(kube)[0]["spec"]


def test_a_failed_command_of_ones_own_begins_anew_because_its_checkpoints_are_its_own(
    invoke: Invoke, kube: Any, make_job: Make
) -> None:
    spec = {"image": "i:1", "runtime": {"container": {"command": ["python", "x.py"]}}}
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", spec={**SPEC, **spec}, checkpoint=CHECKPOINT))
    result = invoke("workload", "retry", "a")
    assert (result.code, "begins at step 0" in result.err) == (0, True), result.err
    assert "checkpoint" not in created(kube)[0]["spec"]


@pytest.mark.parametrize(
    ("phase", "hint"), [("Running", "runPolicy.maxRestarts"), ("Succeeded", "clone a"), ("Suspended", "resume a")]
)
def test_only_a_failed_job_is_retried(invoke: Invoke, kube: Any, make_job: Make, phase: str, hint: str) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", phase, spec=SPEC))
    result = invoke("workload", "retry", "a")
    assert (result.code, created(kube)) == (1, [])
    assert f"job 'a': phase {phase}; accepted: Failed\nhint: " in result.err
    assert hint in result.err


def test_a_job_that_failed_after_its_last_step_is_not_trained_again(invoke: Invoke, kube: Any, make_job: Make) -> None:
    status = {"checkpoint": {**CHECKPOINT, "step": 300}, "progress": {"step": 300, "total": 300}}
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", spec=SPEC, **status))
    result = invoke("workload", "retry", "a")
    assert (result.code, "has done all its 300 steps" in result.err, created(kube)) == (1, True, [])
