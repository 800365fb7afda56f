"""`ptctl serve --render`: which server a job, or a model elsewhere, and the flags make."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from ptkube.resources import POSTTRAINJOBS

Invoke = Callable[..., Any]
Make = Callable[..., Any]
RENDER = ("--render", "--tpu", "v6e-4")


def words(outcome: Any) -> list[str]:
    assert outcome.code == 0, outcome.err
    deployment = next(yaml.safe_load_all(outcome.out))
    made: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return made


@pytest.fixture
def done(kube: Any, make_job: Make) -> None:
    spec = {"output": {"uri": "gs://lab/runs"}, "algorithm": {"sft": {}}, "model": {"uri": "hf://org/base"}}
    kube.put(POSTTRAINJOBS, make_job("a", "Succeeded", spec=spec))
    serve = {"gpu": {"type": "nvidia-l4"}, "name": "mine", "bar": {"metric": "eval/loss", "atMost": 1.0}}
    data = {"train": {"uri": "gs://lab/t.jsonl"}, "eval": {"uri": "gs://lab/e.jsonl"}}
    kube.put(POSTTRAINJOBS, make_job("b", "Running", spec={**spec, "data": data, "serve": serve}))


@pytest.mark.usefixtures("done")
def test_a_job_is_served_from_its_export_under_its_own_name(invoke: Invoke) -> None:
    assert words(invoke("serve", "a", *RENDER))[2:5] == ["/models/model", "--served-model-name", "a"]
    outcome = invoke("serve", "a", *RENDER)
    assert "only-dir=runs/a/export" in outcome.out
    assert "name: a-serve" in outcome.out


@pytest.mark.usefixtures("done")
def test_flags_change_what_the_job_itself_asks_for(invoke: Invoke) -> None:
    outcome = invoke("serve", "b", "--render", "--max-length", "512")
    assert words(outcome)[-2:] == ["--max-model-len", "512"]
    assert "cloud.google.com/gke-accelerator: nvidia-l4" in outcome.out
    assert "job 'b' is Running: its export is complete when it has succeeded" in outcome.err
    assert "gke-tpu-topology" in invoke("serve", "b", *RENDER).out


@pytest.mark.usefixtures("done")
def test_a_job_that_has_not_succeeded_is_not_applied(invoke: Invoke, kube: Any) -> None:
    outcome = invoke("serve", "b", "--on", "gke")
    assert outcome.code == 2
    assert "`ptctl workload wait b`" in outcome.err
    assert [call for call in kube.calls if call[0] != "list"] == []


def test_a_model_of_the_hub_keeps_its_name_and_a_directory_gets_that_of_its_run(invoke: Invoke) -> None:
    hub = words(invoke("serve", "hf://Qwen/Qwen3-8B", *RENDER))
    assert hub[2:5] == ["Qwen/Qwen3-8B", "--served-model-name", "Qwen/Qwen3-8B"]
    assert words(invoke("serve", "gs://lab/runs/My_Run/export", *RENDER))[4] == "my-run"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tpu", "v6e-4", "--gpu", "nvidia-l4"), "exactly one of tpu, gpu"),
        (("--gpu", "nvidia-l4:many"), "--gpu nvidia-l4:many: accepted: TYPE or TYPE:COUNT"),
        (("--tpu", "v6e-4", "--replicas", "4:1"), "spec.serve.replicas.max: 1: at least serve.replicas.min"),
        (("--tpu", "v6e-4", "--replicas", "few"), "--replicas few: accepted: N, or MIN:MAX"),
        (("--tpu", "v6e-4", "--adapter", "gs://lab/a"), "--adapter gs://lab/a: accepted: NAME=URI"),
        (("--tpu", "v6e-4", "--step", "3"), "--step: vLLM serves exports"),
        (("--tpu", "v6e-4", "--hostname", "a.b"), "spec.serve.gateway.name: (missing): is required"),
    ],
)
def test_wrong_flags_are_refused_with_what_is_accepted(invoke: Invoke, flags: tuple[str, ...], message: str) -> None:
    outcome = invoke("serve", "gs://lab/m", "--render", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
