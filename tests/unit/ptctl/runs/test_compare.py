"""`workload events` and `diff`: what happened to a job, and what differs between two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders.servers import bucket as bucketserver

from ptkube.resources import EVENTS, PODS, POSTTRAINJOBS

Invoke = Callable[..., Any]
Make = Callable[..., Any]


def event(name: str, kind: str, about: str, time: str, uid: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "involvedObject": {"kind": kind, "name": about, **({"uid": uid} if uid else {})},
        "type": "Normal",
        "reason": name.title(),
        "message": f"the message\nof {name}",
        "lastTimestamp": time,
    }


@pytest.fixture
def eventful(kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a", jobSet="a-set"))
    kube.put(PODS, {"metadata": {"name": "a-pod", "labels": {"posttrain.dev/job": "a"}}})
    for each in (
        event("second", "JobSet", "a-set", "2026-01-01T00:01:00Z"),
        event("first", "PostTrainJob", "a", "2026-01-01T00:00:00Z", "uid-a"),
        event("third", "Pod", "a-pod", "2026-01-01T00:02:00Z"),
        event("earlier-job", "PostTrainJob", "a", "2026-01-01T00:02:00Z", "uid-of-another"),
        event("other", "Pod", "b-pod", "2026-01-01T00:02:00Z"),
    ):
        kube.put(EVENTS, each)


@pytest.mark.usefixtures("eventful")
def test_events_are_those_of_the_job_its_jobset_and_its_pods_oldest_first(invoke: Invoke) -> None:
    lines = invoke("workload", "events", "a").out.splitlines()
    assert lines[0].split() == ["AGE", "OBJECT", "TYPE", "REASON", "MESSAGE"]
    assert [line.split()[1:] for line in lines[1:]] == [
        ["PostTrainJob/a", "Normal", "First", "the", "message", "of", "first"],
        ["JobSet/a-set", "Normal", "Second", "the", "message", "of", "second"],
        ["Pod/a-pod", "Normal", "Third", "the", "message", "of", "third"],
    ]
    items = json.loads(invoke("workload", "events", "a", "-o", "json").out)["items"]
    assert [item["reason"] for item in items] == ["First", "Second", "Third"]


def test_a_job_without_events_is_answered_on_stderr(invoke: Invoke, kube: Any, make_job: Make) -> None:
    kube.put(POSTTRAINJOBS, make_job("a"))
    result = invoke("workload", "events", "a")
    assert (result.code, result.out) == (0, "")
    assert "keeps them for an hour" in result.err
    assert invoke("workload", "events", "b").code == 3


@pytest.fixture
def two(kube: Any, make_job: Make, tmp_path: Path) -> None:
    for name, steps, reward in (("a", 300, "0.41"), ("b", 200, "0.57")):
        spec = {
            "output": {"uri": f"file://{tmp_path}"},
            "training": {"steps": steps, "optimizer": {"learningRate": 1e-6}},
            "rewards": [{"builtin": "gsm8k"}, {"builtin": "format", "weight": steps / 100}],
        }
        kube.put(POSTTRAINJOBS, make_job(name, "Succeeded", spec=spec, metrics={"reward": reward, "loss": "1"}))
        (tmp_path / name).mkdir()
        (tmp_path / name / "lineage.json").write_text(json.dumps({"versions": {"jax": f"0.{steps}", "python": "3"}}))


@pytest.mark.usefixtures("two")
def test_diff_shows_spec_lineage_and_results_that_differ_and_nothing_else(invoke: Invoke) -> None:
    result = invoke("workload", "diff", "a", "b")
    assert [line.split() for line in result.out.splitlines()] == [
        ["FIELD", "a", "b"],
        ["spec.training.steps", "300", "200"],
        ["spec.rewards[1].weight", "3.0", "2.0"],
        ["lineage.versions.jax", "0.300", "0.200"],
        ["results.metrics.reward", "0.41", "0.57"],
    ]
    assert json.loads(invoke("workload", "diff", "a", "b", "-o", "json").out) == {
        "spec": {"training.steps": [300, 200], "rewards[1].weight": [3.0, 2.0]},
        "lineage": {"versions.jax": ["0.300", "0.200"]},
        "results": {"metrics.reward": ["0.41", "0.57"]},
    }
    same = invoke("workload", "diff", "a", "a")
    assert (same.code, same.out, same.err) == (0, "", "no differences in spec, lineage and results\n")


@pytest.mark.usefixtures("two")
def test_a_diff_too_wide_for_the_terminal_has_a_line_for_each_value(invoke: Invoke, kube: Any) -> None:
    kube.objects[("posttrainjobs", "default", "a")]["spec"]["image"] = "registry.example/" + "x" * 60
    lines = invoke("workload", "diff", "a", "b", terminal=True).out.splitlines()
    at = lines.index("spec.image")
    assert lines[at + 1 : at + 3] == ["  - registry.example/" + "x" * 60, "  + -"]


def test_a_lineage_in_a_bucket_is_compared_and_one_that_is_not_there_left_out(
    invoke: Invoke, kube: Any, make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        kube.put(POSTTRAINJOBS, make_job(name, spec={"output": {"uri": "gs://bucket/runs"}}))
    with bucketserver.serve_here(monkeypatch) as buckets:
        buckets.put("bucket", "runs/a/lineage.json", b'{"seed": 1}')
        buckets.put("bucket", "runs/b/lineage.json", b'{"seed": 2}')
        assert json.loads(invoke("workload", "diff", "a", "b", "-o", "json").out)["lineage"] == {"seed": [1, 2]}
        result = invoke("workload", "diff", "a", "c")
    assert "without the lineage of c: no lineage.json that can be read" in result.err


def test_a_job_that_no_operator_has_seen_yet_differs_in_results_by_their_names(
    invoke: Invoke, kube: Any, make_job: Make
) -> None:
    checkpoint = {"step": 40, "uri": "file:///runs/a/checkpoints/40", "time": "2026-01-01T00:00:00Z"}
    kube.put(POSTTRAINJOBS, make_job("a", "Failed", checkpoint=checkpoint))
    unseen = make_job("b")
    del unseen["status"]
    kube.put(POSTTRAINJOBS, unseen)
    differences = json.loads(invoke("workload", "diff", "a", "b", "-o", "json").out)
    assert differences == {
        "spec": {},
        "lineage": {},
        "results": {"phase": ["Failed", None], "checkpoint.step": [40, None]},
    }
