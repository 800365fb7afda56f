"""`ptctl workload render --cloud-run`: a golden file, what is refused, and that the trainer gets the job."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.operator.manifest_checks import assert_golden

from ptapi.load import load_job

Invoke = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "manifests" / "examples" / "breeds-rtx-pro-6000.yaml"
IMAGE = ("--trainer-image", "us-docker.pkg.dev/p/r/posttrain-trainer:1-cuda")


@pytest.fixture
def rendered(invoke: Invoke, tmp_path: Path) -> Callable[..., Any]:
    """Render the example with fields of its spec replaced (model__uri=…)."""

    def render(flags: tuple[str, ...] = IMAGE, **fields: Any) -> Any:
        body = yaml.safe_load(EXAMPLE.read_text())
        for path, value in fields.items():
            *parents, last = path.split("__")
            of = body["spec"]
            for name in parents:
                of = of.setdefault(name, {})
            of[last] = value
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(body))
        return invoke("workload", "render", "-f", str(file), "--cloud-run", "-o", "json", *flags)

    return render


def task(outcome: Any) -> Any:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["spec"]["template"]["spec"]["template"]["spec"]


def test_golden_cloud_run_job(invoke: Invoke) -> None:
    shown = invoke("workload", "render", "-f", str(EXAMPLE), "--cloud-run", *IMAGE)
    assert shown.code == 0, shown.err
    assert "attempts of at most 60m, 3 more after the first" in shown.err
    assert_golden(ROOT / "tests" / "golden" / "render_gpus" / "cloud-run.yaml", shown.out)


def test_the_command_gives_the_trainer_the_job_as_it_was_rendered(rendered: Any, tmp_path: Path) -> None:
    (container,) = task(rendered())["containers"]
    file = tmp_path / "there.yaml"
    words = [word.replace("/tmp/job.yaml", str(file)) for word in container["command"]]
    env = {each["name"]: each["value"] for each in container["env"]}
    ran = subprocess.run(
        [*words[:4], "cat", str(file)], env={**env, "PATH": "/usr/bin:/bin"}, capture_output=True, check=True
    )
    job, wanted = load_job(ran.stdout.decode()), load_job(EXAMPLE.read_text())
    assert job.spec == wanted.spec
    assert container["args"] == ["run", "/tmp/job.yaml"]
    assert not any(name.startswith("POSTTRAIN_") for name in env if name != "POSTTRAIN_JOB")


def test_a_token_is_a_secret_of_secret_manager_and_no_field_of_a_pod_is_named(rendered: Any) -> None:
    (container,) = task(rendered(model__tokenSecretRef={"name": "hf", "key": "token"}))["containers"]
    named = {each["name"]: each["valueFrom"] for each in container["env"] if "valueFrom" in each}
    assert named == {"HF_TOKEN": {"secretKeyRef": {"name": "hf", "key": "latest"}}}


def test_a_bucket_named_as_a_directory_is_mounted(rendered: Any) -> None:
    made = task(rendered(model__uri="file:///gcs/models/gemma", output__uri="file:///gcs/lab-runs/runs"))
    mounts = {each["name"]: each["mountPath"] for each in made["containers"][0]["volumeMounts"]}
    buckets = {each["name"]: each["csi"]["volumeAttributes"]["bucketName"] for each in made["volumes"]}
    assert {buckets[name]: path for name, path in mounts.items()} == {
        "models": "/gcs/models", "lab-runs": "/gcs/lab-runs",
    }  # fmt: skip
    assert {each["csi"]["driver"] for each in made["volumes"]} == {"gcsfuse.run.googleapis.com"}


def test_times_retries_and_sizes_are_the_jobs_within_cloud_runs_limits(rendered: Any) -> None:
    policy = {"maxRestarts": 30, "activeDeadlineSeconds": 1200}
    made = task(
        rendered(runPolicy=policy, accelerator={"type": "l4-1"}, resources={"trainer": {"limits": {"memory": "64Gi"}}})
    )
    assert (made["maxRetries"], made["timeoutSeconds"]) == (10, 1200)
    assert made["containers"][0]["resources"]["limits"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    assert made["nodeSelector"] == {"run.googleapis.com/accelerator": "nvidia-l4"}
    on_cpus = task(rendered(accelerator={"type": "cpu-4"}, capacity=[{"type": "existing"}]))
    assert "nodeSelector" not in on_cpus
    assert "nvidia.com/gpu" not in on_cpus["containers"][0]["resources"]["limits"]
    assert on_cpus["timeoutSeconds"] == 168 * 3600


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "several machines": (
        {"accelerator": {"type": "h100-16"}, "training__microBatchSize": 16},
        "spec.accelerator.type: h100-16 (16 GPUs)",
    ),
    "several GPUs": ({"accelerator": {"type": "l4-4"}}, "accepted on Cloud Run: l4-1, rtx-pro-6000-1 or cpu-N"),
    "a TPU": ({"accelerator": {"type": "v6e-1"}}, "several machines, and TPUs, are GKE's"),
    "a token in the open": ({"env": [{"name": "HF_TOKEN", "value": "hf_x"}]}, "valueFrom: {secretKeyRef:"),
    "a claim": (
        {"volumes": [{"name": "d", "mountPath": "/d", "persistentVolumeClaim": {"claimName": "d"}}]},
        "spec.volumes[0]: d: accepted on Cloud Run: emptyDir",
    ),
    "a directory": ({"data__train": {"uri": "file:///data/a.jsonl"}}, "file:///data/a.jsonl: accepted on Cloud Run: gs://"),
    "a queue": ({"queue": "team"}, "spec.queue: set: accepted on Cloud Run: unset"),
    "a container": ({"image": "r/x:1", "runtime": {"container": {"command": ["x"]}}}, "spec.runtime: not the trainer"),
    "staging": ({"model": {"uri": "hf://org/m", "stage": True}}, "spec.model.stage: true"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cloud_run_does_not_have_is_refused_with_a_sentence(rendered: Any, case: str) -> None:
    fields, words = REFUSED[case]
    outcome = rendered(**fields)
    assert (outcome.code, outcome.out) == (2, ""), outcome.out
    assert words in outcome.err


def test_an_image_of_no_registry_is_refused(rendered: Any) -> None:
    outcome = rendered(())
    assert (outcome.code, "spec.image: posttrain-trainer:0.1.0-cuda" in outcome.err) == (2, True)
