"""What the operator makes of a job: golden files for every kind of job, and rules that hold for all accelerators."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.operator.manifest_checks import assert_golden, refusals, with_public_crds
from tests.builders.operator.world import job_manifest

from ptapi import accelerators
from ptapi.failures import FATAL_EXIT_CODES
from ptapi.load import parse_job
from ptapi.spec import PostTrainJob
from ptapi.text import kubectl_yaml
from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.render import config_map, jobset, layout_of, render
from ptoperator.render.pods.beside import vllm_plugin
from ptoperator.settings import Settings

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "render"
SETTINGS = Settings()
UID = "0b5e2a4c-8f0e-4f5e-9d1c-2f6f1c9a7e11"

EVERYTHING: Manifest = {
    "image": "registry.example/trainer@sha256:" + "0" * 64,
    "imagePullSecrets": ["registry"],
    "env": [
        {"name": "XLA_FLAGS", "value": "--xla_dump_to=/tmp/dump"},
        {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}},
    ],
    "volumes": [
        {"name": "runs", "mountPath": "/runs", "persistentVolumeClaim": {"claimName": "runs"}},
        {"name": "data", "mountPath": "/data", "readOnly": True, "configMap": {"name": "rows"}},
        {"name": "keys", "mountPath": "/keys", "secret": {"secretName": "keys"}},
        {"name": "scratch", "mountPath": "/scratch", "emptyDir": {}},
    ],
    "model": {"uri": "gs://models/gated", "tokenSecretRef": {"name": "hf"}},
    "priorityClassName": "high",
    "queue": "team-a",
    "serviceAccountName": "trainer",
    "accelerator": {"type": "cpu-2", "slices": 2},
    "runPolicy": {"maxRestarts": 7, "terminationGracePeriodSeconds": 120},
}
CASES: dict[str, Manifest] = {
    **{path.stem: yaml.safe_load(path.read_text()) for path in EXAMPLES},
    "every-pod-field": job_manifest("everything", **EVERYTHING),
    "long-name": job_manifest("a-very-long-name-of-a-job-that-nobody-should-type-but-somebody"),
}
OF_KIND = {
    kind: [
        name
        for generation, facts in accelerators.table().items()
        if facts["kind"] == kind
        for name in accelerators.names(generation)
    ]
    for kind in ("tpu", "gpu")
}


def job(manifest: Manifest) -> PostTrainJob:
    meta = {**manifest["metadata"], "uid": UID, "namespace": manifest["metadata"].get("namespace", "team-a")}
    return parse_job({**manifest, "metadata": meta})


def on(accelerator: str, slices: int = 1, **spec: Any) -> PostTrainJob:
    batch = {"steps": 10, "batchSize": accelerators.resolve(accelerator, slices=slices).total_devices}
    return job(job_manifest(accelerator={"type": accelerator, "slices": slices}, training=batch, **spec))


def pod_spec(made: Manifest) -> Manifest:
    spec: Manifest = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return spec


def env_of(made: Manifest, container: int = 0) -> Manifest:
    variables = pod_spec(made)["containers"][container]["env"]
    names = [variable["name"] for variable in variables]
    assert len(names) == len(set(names))
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in variables}


def made_for(accelerator: str, slices: int = 1, **spec: Any) -> Manifest:
    return jobset(layout_of(on(accelerator, slices, **spec), SETTINGS))


@pytest.mark.parametrize("name", CASES)
def test_golden_manifests_of_every_kind_of_job(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of the plugin's modules, which are in the repository, are left out."""
    left_out = dict.fromkeys(vllm_plugin.files(), "(its text)\n")
    monkeypatch.setattr(vllm_plugin, "files", lambda: left_out)
    text = "---\n".join(kubectl_yaml.write(made) for made in render(job(CASES[name]), SETTINGS))
    assert_golden(GOLDEN / f"{name}.yaml", text)


def test_there_is_no_golden_file_of_a_case_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(CASES)


@with_public_crds
@pytest.mark.parametrize("name", CASES)
def test_jobsets_satisfy_the_public_crd(name: str) -> None:
    (made,) = (each for each in render(job(CASES[name]), SETTINGS) if each["kind"] == "JobSet")
    assert refusals(made, "jobset.x-k8s.io_jobsets", "v1alpha2") == []


@pytest.mark.parametrize("accelerator", OF_KIND["tpu"])
def test_every_tpu_gets_all_its_chips_on_nodes_of_its_kind(accelerator: str) -> None:
    table = accelerators.resolve(accelerator)
    made = made_for(accelerator)
    replicated, pod = made["spec"]["replicatedJobs"][0], pod_spec(made)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": table.gke_accelerator,
        "cloud.google.com/gke-tpu-topology": table.topology,
    }
    per_pod = sum(container["resources"]["limits"]["google.com/tpu"] for container in pod["containers"])
    assert per_pod == table.chips_per_vm
    assert per_pod * replicated["template"]["spec"]["completions"] == table.chips
    assert replicated["template"]["spec"]["parallelism"] == replicated["template"]["spec"]["completions"]
    assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    longest = f"{made['metadata']['name']}-slice-0-{table.vms - 1}-xxxxx"
    assert len(longest) <= 63


def test_a_slice_of_several_hosts_has_a_node_pool_of_its_own_and_a_single_host_shares() -> None:
    assert made_for("v6e-16")["metadata"]["annotations"][labels.EXCLUSIVE_TOPOLOGY] == "cloud.google.com/gke-nodepool"
    assert labels.EXCLUSIVE_TOPOLOGY not in made_for("v6e-4")["metadata"]["annotations"]


def test_one_job_per_slice() -> None:
    replicated = made_for("v6e-16", 3)["spec"]["replicatedJobs"][0]
    assert (replicated["name"], replicated["replicas"]) == ("slice", 3)
    assert replicated["template"]["spec"]["completions"] == 4


def test_tpu7x_has_two_containers_per_vm_with_half_of_the_chips_each() -> None:
    made = made_for("tpu7x-16")
    containers = pod_spec(made)["containers"]
    assert [container["name"] for container in containers] == ["trainer-0", "trainer-1"]
    assert [container["resources"]["limits"]["google.com/tpu"] for container in containers] == [2, 2]
    assert env_of(made)["JAX_NUM_PROCESSES"] == "4"
    assert [env_of(made, index)["POSTTRAIN_PROCESS_IN_HOST"] for index in (0, 1)] == ["0", "1"]
    assert "JAX_PROCESS_ID" not in env_of(made)


def test_one_process_needs_no_coordinator() -> None:
    env = env_of(made_for("cpu-4"))
    assert "JAX_COORDINATOR_ADDRESS" not in env
    assert env["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"


def test_hosts_of_one_slice_are_numbered_by_their_completion_index() -> None:
    env = env_of(made_for("v6e-16"))
    assert env["JAX_COORDINATOR_ADDRESS"] == "llama-slice-0-0.llama:8476"
    assert env["JAX_NUM_PROCESSES"] == "4"
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert env["JAX_PROCESS_ID"] == {"fieldRef": {"fieldPath": path}}
    assert "MEGASCALE_NUM_SLICES" not in env


def test_cpu_slices_are_processes_numbered_by_their_job_index() -> None:
    env = env_of(made_for("cpu-2", 2))
    assert env["JAX_NUM_PROCESSES"] == "2"
    assert env["JAX_PROCESS_ID"] == {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}}
    assert "MEGASCALE_NUM_SLICES" not in env


def test_several_slices_of_several_hosts_leave_the_number_to_the_trainer() -> None:
    env = env_of(made_for("v6e-16", 2))
    assert "JAX_PROCESS_ID" not in env
    assert env["POSTTRAIN_HOSTS_PER_SLICE"] == "4"
    assert "job-index" in env["POSTTRAIN_SLICE_INDEX"]["fieldRef"]["fieldPath"]
    assert "completion-index" in env["POSTTRAIN_HOST_INDEX"]["fieldRef"]["fieldPath"]
    assert env["MEGASCALE_NUM_SLICES"] == "2"
    assert env["MEGASCALE_COORDINATOR_ADDRESS"] == "llama-slice-0-0.llama"


def test_the_coordinator_is_a_pod_of_the_jobset_also_when_its_name_is_cut() -> None:
    made = jobset(layout_of(job({**job_manifest("x" * 63), "spec": CASES["sft-v6e-multislice"]["spec"]}), SETTINGS))
    name = made["metadata"]["name"]
    assert len(name) < 63
    assert env_of(made)["JAX_COORDINATOR_ADDRESS"] == f"{name}-slice-0-0.{name}:8476"
    assert made["metadata"]["labels"][labels.JOB] == "x" * 63


def test_what_the_job_sets_wins_and_xla_flags_are_put_together() -> None:
    env = env_of(made_for("cpu-2", env=[{"name": "JAX_PLATFORMS", "value": "tpu"}, *EVERYTHING["env"][:1]]))
    assert env["JAX_PLATFORMS"] == "tpu"
    assert env["XLA_FLAGS"] == "--xla_force_host_platform_device_count=2 --xla_dump_to=/tmp/dump"


def test_keys_of_trackers_are_references() -> None:
    tracking = {
        "wandb": {"project": "maths", "apiKeySecretRef": {"name": "wandb"}},
        "mlflow": {
            "trackingUri": "https://mlflow",
            "experiment": "maths",
            "tokenSecretRef": {"name": "ml", "key": "k"},
        },
        "openTelemetry": {"endpoint": "http://collector:4318", "headersSecretRef": {"name": "otel", "key": "headers"}},
    }
    env = env_of(made_for("v6e-4", tracking=tracking))
    assert env["WANDB_API_KEY"] == {"secretKeyRef": {"name": "wandb", "key": "token"}}
    assert env["MLFLOW_TRACKING_TOKEN"] == {"secretKeyRef": {"name": "ml", "key": "k"}}
    assert env["OTEL_EXPORTER_OTLP_HEADERS"] == {"secretKeyRef": {"name": "otel", "key": "headers"}}


def test_tokens_are_references_and_never_values() -> None:
    manifests = render(job(CASES["every-pod-field"]), SETTINGS)
    assert env_of(manifests[1])["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}


def test_the_config_map_holds_the_whole_job_and_its_uid() -> None:
    made = config_map(layout_of(job(CASES["sft-cpu"]), SETTINGS))
    document = yaml.safe_load(made["data"]["job.yaml"])
    assert document["metadata"]["uid"] == UID
    assert parse_job(document).spec == job(CASES["sft-cpu"]).spec
    assert document["spec"]["training"]["optimizer"]["maxGradNorm"] == 1.0


def test_a_queued_jobset_is_made_suspended_for_kueue_to_admit() -> None:
    made = made_for("cpu-1", queue="team-a")
    assert made["spec"]["suspend"] is True
    assert made["metadata"]["labels"][labels.KUEUE_QUEUE] == "team-a"
    assert made_for("cpu-1")["spec"]["suspend"] is False


def test_the_job_rules_and_the_jobset_rules_speak_of_the_same_exit_codes() -> None:
    made = made_for("cpu-1")
    rules = made["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[2]["onExitCodes"]["values"] == list(FATAL_EXIT_CODES)
    fatal = made["spec"]["failurePolicy"]["rules"][0]
    assert fatal["action"] == "FailJobSet"
    assert all(str(code) in fatal["onJobFailureMessagePatterns"][0] for code in FATAL_EXIT_CODES)


def test_a_job_without_uid_is_rendered_without_owner() -> None:
    bare = parse_job(job_manifest())
    assert all(made["metadata"]["ownerReferences"] == [] for made in render(bare, SETTINGS))
