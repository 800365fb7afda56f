"""Jobs written in Python: the spec's words, one edge for all of them, and the document that is sent."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain import spec

REQUIRED: dict[str, Any] = {
    "name": "a",
    "model": {"uri": "random://tiny"},
    "algorithm": {"grpo": {"groupSize": 2}},
    "data": {"train": {"uri": "file:///data/train.jsonl"}},
    "rewards": [{"builtin": "gsm8k"}],
    "accelerator": {"type": "cpu-1"},
    "output": {"uri": "file:///runs"},
}


def test_models_dicts_and_both_spellings_make_the_same_job() -> None:
    camel = posttrain.PostTrainJob(**REQUIRED, runPolicy={"maxRestarts": 1}, labels={"my_team": "x"})
    snake = posttrain.PostTrainJob(
        **REQUIRED | {"algorithm": spec.Algorithm(grpo=spec.Grpo(group_size=2))},
        run_policy={"max_restarts": 1},
        labels={"my_team": "x"},
    )
    assert camel == snake
    assert camel.manifest() == snake.manifest()
    assert snake.run_policy.max_restarts == 1
    assert camel.manifest()["metadata"] == {"name": "a", "labels": {"my_team": "x"}}


def test_the_document_holds_what_was_set_and_no_default() -> None:
    manifest = posttrain.PostTrainJob(**REQUIRED).manifest()
    assert manifest["spec"] == {name: value for name, value in REQUIRED.items() if name != "name"}
    assert (manifest["apiVersion"], manifest["kind"]) == ("posttrain.dev/v1alpha1", "PostTrainJob")


def test_a_file_and_the_yaml_of_its_job_are_the_same_job(tmp_path: Path) -> None:
    job = posttrain.PostTrainJob(**REQUIRED, namespace="team-a", training={"steps": 3})
    path = tmp_path / "job.yaml"
    path.write_text(job.to_yaml())
    assert posttrain.PostTrainJob.from_file(path) == job
    with pytest.raises(posttrain.Error, match="no such file"):
        posttrain.PostTrainJob.from_file(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"batch_size": "8"}}, 'spec.training.batchSize: "8": a whole number'),
        ({"training": {"bach_size": 8}}, "did you mean spec.training.batchSize?"),
        ({"training": {"batch_size": 8, "batchSize": 8}}, "spec.training.batchSize: 8: is given twice"),
        ({"name": "A"}, "metadata.name: A: lower-case letters"),
        ({"accelerators": {"type": "cpu-1"}}, "spec has no field accelerators"),
        ({"rewards": []}, "spec.rewards"),
        ({"model": 3}, "spec.model: 3"),
    ],
)
def test_a_wrong_job_names_field_value_and_what_is_accepted(change: dict[str, Any], words: str) -> None:
    with pytest.raises(posttrain.SpecError) as refused:
        posttrain.PostTrainJob(**REQUIRED | change)
    assert words in str(refused.value)


def test_every_finding_is_named_at_once() -> None:
    with pytest.raises(posttrain.SpecError) as refused:
        posttrain.PostTrainJob(name="a", training={"steps": 0})
    fields = {finding.field for finding in refused.value.findings}
    assert {"spec.model", "spec.data", "spec.training.steps", "spec.output"} <= fields


def test_a_job_and_an_error_survive_another_process() -> None:
    job = posttrain.PostTrainJob(**REQUIRED)
    assert pickle.loads(pickle.dumps(job)).manifest() == job.manifest()
    error = pickle.loads(pickle.dumps(posttrain.JobFailed("DataError", "row 3 is no JSON", "mend it")))
    assert (error.failure_class, error.hint) == ("DataError", "mend it")
    assert str(error) == "row 3 is no JSON\nhint: mend it"
