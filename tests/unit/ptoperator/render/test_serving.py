"""What serves a trained model: golden manifests, and what vLLM is told about weights and adapters."""

from pathlib import Path
from typing import Any

import pytest
from tests.builders.operator.manifest_checks import CRDS, assert_golden, refusals

from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptctl.ui.output import stream
from ptkube.resources import Manifest
from ptoperator.render.serving import serving_objects
from ptoperator.render.serving.cloud_run import cloud_run_service
from ptoperator.render.serving.deployment import model_names
from ptoperator.render.serving.server import Server, server_name, server_of_job

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "serving"
LORA: dict[str, Any] = {"training": {"lora": {"rank": 128}}, "export": {"format": "peft", "mergeLora": False}}
ADAPTERS = [{"name": "math", "uri": "gs://lab/math/export"}, {"name": "code", "uri": "hf://org/code"}]
CASES: dict[str, dict[str, Any]] = {
    "tpu": {"serve": {"tpu": "v6e-8", "maxLength": 8192}},
    "gpu-scaled-behind-a-gateway": {
        "serve": {
            "gpu": {"type": "nvidia-h100-80gb", "count": 8},
            "image": "vllm/vllm-openai:v0.11.0",
            "replicas": {"min": 1, "max": 4, "queueLength": 16},
            "gateway": {"name": "outside", "hostname": "a.example.com", "endpointPicker": "picker"},
        }
    },
    "from-zero": {"serve": {"tpu": "tpu7x-8", "replicas": {"min": 0, "max": 2}}},
    "adapters": {**LORA, "serve": {"gpu": {"type": "nvidia-l4"}, "name": "mine", "adapters": ADAPTERS}},
    "claim": {
        "output": {"uri": "file:///runs/all"},
        "volumes": [{"name": "runs", "mountPath": "/runs", "persistentVolumeClaim": {"claimName": "runs"}}],
        "serve": {"tpu": "v5e-4"},
    },
}


def server(**spec: Any) -> Server:
    document = {
        "apiVersion": "posttrain.dev/v1alpha1",
        "kind": "PostTrainJob",
        "metadata": {"name": "llama", "namespace": "team"},
        "spec": {
            "model": {"uri": "hf://org/base", "tokenSecretRef": {"name": "hf"}},
            "algorithm": {"sft": {}},
            "data": {"train": {"uri": "gs://lab/train.jsonl"}},
            "accelerator": {"type": "v6e-16"},
            "output": {"uri": "gs://lab/runs"},
            **spec,
        },
    }
    job = parse_job(document)
    assert job.spec.serve is not None
    return server_of_job(job, job.spec.serve, "reader")


def container(objects: list[Manifest]) -> Manifest:
    made: Manifest = objects[0]["spec"]["template"]["spec"]["containers"][0]
    return made


@pytest.mark.parametrize("name", CASES)
def test_golden_manifests_of_servers(name: str) -> None:
    assert_golden(GOLDEN / f"{name}.yaml", stream(serving_objects(server(**CASES[name]))) + "\n")


def test_golden_service_of_cloud_run() -> None:
    spec = {"gpu": {"type": "nvidia-l4"}, "replicas": {"min": 0, "max": 3}}
    assert_golden(GOLDEN / "cloud-run.yaml", stream([cloud_run_service(server(serve=spec))]) + "\n")


def test_adapters_of_a_run_are_served_beside_its_base_model() -> None:
    words = container(serving_objects(server(**CASES["adapters"])))["command"]
    assert words[2:5] == ["org/base", "--served-model-name", "org/base"]
    assert words[words.index("--max-lora-rank") + 1] == "128"
    modules = words[words.index("--lora-modules") + 1 :]
    assert modules == ["mine=/models/adapter-mine", "math=/models/adapter-math", "code=org/code"]


def test_a_number_of_servers_that_an_autoscaler_sets_is_not_stated() -> None:
    fixed, scaled = (serving_objects(server(**CASES[name]))[0] for name in ("tpu", "gpu-scaled-behind-a-gateway"))
    assert fixed["spec"]["replicas"] == 1
    assert "replicas" not in scaled["spec"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"output": {"uri": "file:///laptop"}, "serve": {"tpu": "v6e-1"}}, "below a PersistentVolumeClaim"),
        ({"output": {"uri": "gs://lab/a,b"}, "serve": {"tpu": "v6e-1"}}, "a directory without commas"),
    ],
)
def test_weights_that_no_pod_reaches_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        serving_objects(server(**spec))


@pytest.mark.parametrize(
    "serve", [{"tpu": "v6e-1"}, {"gpu": {"type": "nvidia-l4", "count": 2}}, {"gpu": {"type": "x"}}]
)
def test_cloud_run_has_one_gpu_of_two_types(serve: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="accepted on Cloud Run: one of nvidia-l4, nvidia-rtx-pro-6000, count 1"):
        cloud_run_service(server(serve=serve))


def test_a_server_never_has_the_name_of_a_jobset_and_fits_a_dns_label() -> None:
    names = {server_name(base) for base in ("a", "a" * 63, "a" * 62 + "b")}
    assert len(names) == 3
    assert all(name.endswith("-serve") and len(name) <= 63 for name in names)


@pytest.mark.parametrize(
    ("case", "kind", "crd", "version"),
    [
        ("gpu-scaled-behind-a-gateway", "InferencePool", "inference.networking.k8s.io_inferencepools", "v1"),
        ("gpu-scaled-behind-a-gateway", "HTTPRoute", "gateway.networking.k8s.io_httproutes", "v1"),
        ("gpu-scaled-behind-a-gateway", "PodMonitoring", "monitoring.googleapis.com_podmonitorings", "v1"),
        ("from-zero", "HTTPScaledObject", "http.keda.sh_httpscaledobjects", "v1alpha1"),
    ],
)
def test_the_public_definitions_accept_what_is_made(case: str, kind: str, crd: str, version: str) -> None:
    if not (CRDS / f"{crd}.yaml").exists():
        pytest.skip("the public CRD is not beside the repository")
    [body] = [each for each in serving_objects(server(**CASES[case])) if each["kind"] == kind]
    assert refusals(body, crd, version) == []


def test_a_server_of_a_model_with_tools_parses_its_calls() -> None:
    words = container(serving_objects(server(serve={"tpu": "v6e-8", "toolParser": "hermes"})))["command"]
    assert words[-3:] == ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


def test_names_for_clients_are_read_back_from_a_deployment() -> None:
    assert model_names(serving_objects(server(**CASES["adapters"]))[0]) == ["org/base", "mine", "math", "code"]
    assert model_names(serving_objects(server(**CASES["tpu"]))[0]) == ["llama"]
