"""A Pathways JobSet: compared field by field with Google's own builder; and what ours has beyond it."""

from typing import Any

import pytest
from tests.builders.operator.manifest_checks import covers, differences
from tests.builders.operator.world import job_manifest
from tests.unit.ptoperator.render.test_render import SETTINGS, env_of, job, made_for, on

from ptapi.accelerators import compiler_flags, resolve
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.render import jobset, layout_of
from ptoperator.settings import Settings

SCRATCH = "gs://bucket/runs/.pathways"
OUTPUT = {"uri": "gs://bucket/runs"}
IMAGE = "registry.example/trainer:1"
SLICES = [("v4-16", 1), ("v5p-128", 1), ("v5e-16", 2), ("v6e-8", 3), ("v6e-16", 1), ("tpu7x-128", 1)]

# Where ours differs from pathwaysutils' builder on purpose. docs/guides/pathways.md says why.
DIFFERENT = {
    "metadata": "labels, owner, annotations",
    "spec.suspend": "a job can be suspended, a queue admits it",
    "spec.failurePolicy": "exit codes and preemption mean something",
    "spec.replicatedJobs[*].template.metadata": "labels; exclusive placement stands where JobSet reads it, on the Job",
    "spec.replicatedJobs[*].template.spec.podFailurePolicy": "preemption is free, a user's mistake is final",
    "spec.replicatedJobs[*].template.spec.template.metadata": "labels",
    "spec.replicatedJobs[1].template.spec.backoffLimit": "a lost worker took its part of the program with it",
    "spec.replicatedJobs[1].template.spec.template.spec.restartPolicy": "as above; a pod failure policy needs Never",
    "spec.replicatedJobs[1].template.spec.template.spec.volumes": "/tmp is the pod's, not the host's",
    "spec.replicatedJobs[1].template.spec.template.spec.tolerations": "TPU nodes are tainted",
    "spec.replicatedJobs[1].template.spec.template.spec.containers[0].resources.limits": "a number, not text",
    "spec.replicatedJobs[0].template.spec.template.spec.containers": "the trainer: its own test",
    "spec.replicatedJobs[0].template.spec.template.spec.volumes": "the trainer's",
    **{
        f"spec.replicatedJobs[*].template.spec.template.spec.{field}": "every pod has it"
        for field in (
            "terminationGracePeriodSeconds", "serviceAccountName", "automountServiceAccountToken",
            "enableServiceLinks", "securityContext",
        )
    },
    **{
        f"spec.replicatedJobs[{job}].template.spec.template.spec.{kind}[{index}].imagePullPolicy": "Kubernetes' default"
        for job, kind, index in ((0, "initContainers", 0), (0, "initContainers", 1), (1, "containers", 0))
    },
}  # fmt: skip
OF_FLAGS = {"spec.replicatedJobs[0].template.spec.template.spec.initContainers[1].args": "the compiler's flags"}


def made(accelerator: str = "v6e-16", slices: int = 1, **spec: Any) -> Manifest:
    return made_for(accelerator, slices, **{"output": OUTPUT, "pathways": {"enabled": True}, **spec})


def pod(rendered: Manifest, index: int) -> Manifest:
    spec: Manifest = rendered["spec"]["replicatedJobs"][index]["template"]["spec"]["template"]["spec"]
    return spec


def googles(accelerator: str, slices: int) -> Manifest:
    builder = pytest.importorskip("pathwaysutils.experimental.gke.jobset", reason="hint: pip install 'posttrain[dev]'")
    chips = resolve(accelerator)
    built: Manifest = (
        builder.PathwaysJobSet("demo", "team-a", SCRATCH, chips.machine_type, chips.topology, slices)
        .add_user_workload(IMAGE, ["python"], name=names.CONTAINER)
        .to_dict()
    )
    return built


@pytest.mark.parametrize(("accelerator", "slices"), SLICES)
def test_ours_is_googles_builders_but_for_the_intended_differences(accelerator: str, slices: int) -> None:
    paths = differences(made(accelerator, slices), googles(accelerator, slices))
    intended = [*DIFFERENT, *(OF_FLAGS if compiler_flags.flags(resolve(accelerator).generation) else ())]
    assert {path for path in paths if not any(covers(each, path) for each in intended)} == set()


def test_every_intended_difference_is_one() -> None:
    paths = differences(made(), googles("v6e-16", 1))
    assert {intended for intended in DIFFERENT if not any(covers(intended, path) for path in paths)} == set()


@pytest.mark.parametrize(
    ("accelerator", "instance", "vms"),
    [
        ("v4-16", "tpuv4:2x2x2", 2),
        ("v5p-128", "tpuv5:4x4x4", 16),
        ("v5e-16", "tpuv5e:4x4", 4),
        ("v6e-16", "tpuv6e:4x4", 4),
        ("tpu7x-128", "tpu7x:4x4x4", 16),
    ],
)
def test_the_resource_manager_is_told_the_slices_in_pathways_words(accelerator: str, instance: str, vms: int) -> None:
    rendered = made(accelerator, 2)
    manager, _ = pod(rendered, 0)["initContainers"]
    assert manager["args"][-2:] == ["--instance_count=2", f"--instance_type={instance}"]
    workers = rendered["spec"]["replicatedJobs"][1]
    assert (workers["replicas"], workers["template"]["spec"]["completions"]) == (2, vms)
    assert pod(rendered, 1)["containers"][0]["resources"] == {"limits": {"google.com/tpu": 4}}


def test_the_proxy_is_given_a_generations_flags_then_the_jobs_then_its_own_words() -> None:
    named, own = "--xla_tpu_enable_latency_hiding_scheduler=true", "--xla_tpu_scoped_vmem_limit_kib=98304"
    job = on("tpu7x-128", output=OUTPUT, pathways={"enabled": True, "proxyArgs": [own]})
    accelerator = job.spec.accelerator.model_copy(update={"xla_flags": [named]})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"accelerator": accelerator})})
    proxy = pod(jobset(layout_of(job, SETTINGS)), 0)["initContainers"][1]
    assert proxy["args"][-3:] == ["--xla_tpu_enable_sparse_core_collective_offload_all_reduce=false", named, own]
    assert not [word for word in pod(made("v4-16"), 0)["initContainers"][1]["args"] if "xla" in word]


def test_the_trainer_reaches_all_chips_through_the_proxy_and_waits_for_no_peers() -> None:
    env = env_of(made("v5p-128", 2))
    assert env["JAX_PLATFORMS"] == "proxy"
    assert env["JAX_BACKEND_TARGET"] == "grpc://localhost:29000"
    assert env["ENABLE_PATHWAYS_PERSISTENCE"] == "1"
    assert not [name for name in env if name.startswith(("JAX_COORD", "JAX_NUM", "MEGASCALE", "POSTTRAIN_SLICE"))]


def test_the_head_runs_on_the_cpu_pool_without_chips_as_no_root() -> None:
    head = pod(made(), 0)
    assert head["nodeSelector"] == {"cloud.google.com/gke-nodepool": "cpu-np"}
    assert not head.get("tolerations")
    (trainer,) = head["containers"]
    assert "limits" not in trainer["resources"]
    assert trainer["securityContext"]["runAsNonRoot"] is True
    assert trainer["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_priority_pull_secrets_and_grace_stand_on_every_pod() -> None:
    policy = {"terminationGracePeriodSeconds": 120}
    rendered = made(priorityClassName="high", imagePullSecrets=["registry"], runPolicy=policy)
    for index in range(2):
        spec = pod(rendered, index)
        assert spec["priorityClassName"] == "high"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["terminationGracePeriodSeconds"] == 120
        assert spec["automountServiceAccountToken"] is False


def test_the_head_decides_by_exit_code_and_the_workers_only_by_disruption() -> None:
    rendered = made()
    head, worker = (
        each["template"]["spec"]["podFailurePolicy"]["rules"] for each in rendered["spec"]["replicatedJobs"]
    )
    assert [list(rule)[1] for rule in head] == ["onPodConditions", "onExitCodes", "onExitCodes"]
    assert worker == [head[0]]
    assert rendered["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["pathways-head"]}
    rules = {rule["name"]: rule["action"] for rule in rendered["spec"]["failurePolicy"]["rules"]}
    assert rules["disrupted"] == "RestartJobSetAndIgnoreMaxRestarts"


def test_a_long_job_name_is_cut_until_the_coordinator_label_fits_and_the_full_one_is_on_every_pod() -> None:
    long = "a-very-long-name-of-a-job-that-nobody-should-type"
    manifest = job_manifest(long, accelerator={"type": "v6e-16"}, output=OUTPUT, pathways={"enabled": True},
                            training={"steps": 1, "batchSize": 16})  # fmt: skip
    rendered = jobset(layout_of(job(manifest), SETTINGS))
    name = rendered["metadata"]["name"]
    assert len(name) == 22
    assert len(f"{name}-pathways-head-0-0.{name}") <= 63
    for each in rendered["spec"]["replicatedJobs"]:
        assert each["template"]["spec"]["template"]["metadata"]["labels"][labels.JOB] == long


def test_images_are_the_jobs_else_the_settings() -> None:
    rendered = made(pathways={"enabled": True, "serverImage": "mine/server:1", "proxyImage": "mine/proxy:1"})
    manager, proxy = pod(rendered, 0)["initContainers"]
    assert (manager["image"], proxy["image"]) == ("mine/server:1", "mine/proxy:1")
    assert pod(rendered, 1)["containers"][0]["image"] == "mine/server:1"


def test_scratch_files_go_where_the_administrator_says() -> None:
    scratch_job = on("v6e-16", output=OUTPUT, pathways={"enabled": True})
    rendered = jobset(layout_of(scratch_job, Settings(pathways_scratch="gs://scratch/p")))
    servers = [*pod(rendered, 0)["initContainers"], *pod(rendered, 1)["containers"]]
    assert all("--gcs_scratch_location=gs://scratch/p" in server["args"] for server in servers)


def test_every_pod_of_a_pathways_run_is_waited_for() -> None:
    assert layout_of(on("v6e-16", 2, output=OUTPUT, pathways={"enabled": True}), SETTINGS).pods == 9
    assert layout_of(on("v6e-16", 2), SETTINGS).pods == 8


def test_auto_makes_the_same_jobset_as_true_where_sampling_needs_one_process() -> None:
    needs = {"algorithm": {"grpo": {}}, "rewards": [{"builtin": "exact"}], "rollout": {"placement": "disaggregated"}}
    auto = made_for("v6e-16", output=OUTPUT, **needs)
    assert auto == made_for("v6e-16", output=OUTPUT, pathways={"enabled": True}, **needs)
    assert [each["name"] for each in auto["spec"]["replicatedJobs"]] == [names.PATHWAYS_HEAD, names.PATHWAYS_WORKER]
