"""Every field of the spec says what its change means to a run that goes on."""

from collections import Counter
from typing import Any

import pytest

from ptapi import spec_changes
from ptapi.crd.immutable_fields import CHANGEABLE, QUEUE
from ptapi.errors import SpecError
from ptapi.load import dump_job, parse_job
from ptapi.spec import PostTrainJob, PostTrainJobSpec
from ptapi.spec.openapi_schema import structural
from ptapi.spec_changes import GROUPS, Change

SPEC: dict[str, Any] = {
    "model": {"uri": "random://tiny"},
    "algorithm": {"sft": {}},
    "data": {"train": {"uri": "file:///data/train.jsonl"}},
    "training": {"steps": 12},
    "accelerator": {"type": "cpu-1"},
    "output": {"uri": "file:///runs"},
}


def job(**parts: Any) -> PostTrainJob:
    document = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": "a"}}
    return parse_job({**document, "spec": {**SPEC, **parts}})


def test_every_field_is_classified_once_and_no_other_name_is() -> None:
    named = Counter(field for group in GROUPS for field in group.fields.split())
    assert not [field for field, times in named.items() if times > 1]
    leaves = set(spec_changes.leaves(structural(PostTrainJobSpec), ""))
    assert set(spec_changes.changes()) == leaves
    assert [name for name in named if not any(leaf == name or leaf.startswith(below(name)) for leaf in leaves)] == []
    assert [name for name in named if any(name.startswith(below(map_)) for map_ in named)] == []


def below(map_: str) -> tuple[str, str]:
    return f"{map_}.", f"{map_}[]."


def test_a_field_that_nobody_classified_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_changes, "changes", dict)
    (difference,) = spec_changes.differences(job(), job(tensorboard={"enabled": False}))
    assert difference.change is Change.MEANING


def test_what_may_change_in_a_cluster_may_change_here() -> None:
    assert {spec_changes.changes()[field] for field in (*CHANGEABLE, QUEUE)} == {Change.FREE}


def differences(before: PostTrainJob, now: PostTrainJob) -> list[tuple[str, str]]:
    return [(str(x), x.change.name) for x in spec_changes.differences(before, now)]


def test_a_default_is_the_same_said_or_not() -> None:
    explicit = job(algorithm={"sft": {"lossOnPrompt": False}}, checkpoint={"keep": 2}, rollout={})
    assert differences(job(), explicit) == []


def test_what_comes_or_goes_whole_is_one_difference() -> None:
    assert differences(job(), job(training={"steps": 12, "profile": {"start": 2}})) == [
        ('spec.training.profile: was unset, is {"start": 2, "steps": 3}', "FREE")
    ]
    (lora,) = differences(job(training={"steps": 12, "lora": {"rank": 4}}), job())
    assert lora[0].startswith('spec.training.lora: was {"rank": 4,')
    assert lora[1] == "MEANING"


def test_values_of_environment_variables_are_not_repeated() -> None:
    before = job(env=[{"name": "PLACE", "value": "there-1"}])
    now = job(env=[{"name": "PLACE", "value": "there-2"}, {"name": "MORE", "value": "there-3"}])
    assert differences(before, now) == [
        ("spec.env[0].value: was (not shown), is (not shown)", "FREE"),
        ("spec.env[1]: was unset, is (not shown)", "FREE"),
    ]


def test_auto_counts_as_the_number_format_that_it_comes_to() -> None:
    explicit = job(training={"steps": 12, "precision": {"compute": "float32"}})
    assert differences(job(), explicit) == []
    assert differences(job(), job(accelerator={"type": "v6e-1"})) == [
        ("spec.training.precision.compute: was float32, is bfloat16", "MEANING"),
        ("spec.accelerator.type: was cpu-1, is v6e-1", "FREE"),
    ]


def test_so_does_that_of_weights() -> None:
    def on_tpus(params: str, lora: dict[str, int] | None) -> PostTrainJob:
        training = {"steps": 12, "precision": {"params": params}, "lora": lora}
        return job(accelerator={"type": "v6e-1"}, training=training)

    assert differences(on_tpus("auto", None), on_tpus("float32", None)) == []
    assert differences(on_tpus("auto", {"rank": 4}), on_tpus("bfloat16", {"rank": 4})) == []
    assert differences(on_tpus("float32", {"rank": 4}), on_tpus("auto", {"rank": 4})) == [
        ("spec.training.precision.params: was float32, is bfloat16", "MEANING")
    ]


def test_a_spec_of_another_version_is_read_and_what_is_no_field_any_more_is_a_difference() -> None:
    text = dump_job(job())
    older = text.replace("      packing: true\n", "").replace("steps: 12", "steps: 12\n    schedulr: fast")
    before, gone = spec_changes.read_job(older.encode())
    assert [str(x) for x in gone] == ["spec.training.schedulr: was fast, is no longer a field"]
    assert spec_changes.differences(before, job()) == []


@pytest.mark.parametrize("content", [b"", b"\xff", b"- a", b"spec: {training: {steps: many}}", b"a: [", b"spec: 3"])
def test_a_spec_that_is_none_is_an_error_and_no_traceback(content: bytes) -> None:
    with pytest.raises(SpecError):
        spec_changes.read_job(content)


def test_samplers_may_come_go_and_move_but_what_samples_stays() -> None:
    def grpo(**rollout: Any) -> PostTrainJob:
        return job(algorithm={"grpo": {}}, rewards=[{"builtin": "gsm8k"}], rollout={"maxNewTokens": 8, **rollout})

    two = grpo(placement="separate", separate={"replicas": 2, "engine": "native"})
    four = grpo(placement="separate", separate={"replicas": 4, "accelerator": {"type": "cpu-2"}})
    assert {change for _, change in differences(grpo(), two)} == {"FREE"}
    assert {change for _, change in differences(two, four)} == {"FREE"}
    separate = two.spec.rollout.separate
    assert separate is not None
    rollout = two.spec.rollout.model_copy(update={"separate": separate.model_copy(update={"engine": "vllm"})})
    vllm = two.model_copy(update={"spec": two.spec.model_copy(update={"rollout": rollout})})
    assert ("spec.rollout.engine: was native, is vllm", "MEANING") in differences(two, vllm)
