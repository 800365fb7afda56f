"""A job of one machine as a Cloud Run job: what `gcloud run jobs replace` takes. Pure.

The trainer, its command and its environment are the operator's (`ptoperator.render`). Cloud Run has no ConfigMap, so
the job travels in a variable. Nobody classifies failures there: Cloud Run stops an attempt at its time limit and starts
the next, which goes on from the last checkpoint. Left out: preflight, capacity and whatever else the operator does;
several machines; TPUs.
"""

import re
from collections.abc import Iterator

from ptapi.errors import Finding, SpecError
from ptkube.resources import Manifest
from ptoperator.render.config_map import job_file
from ptoperator.render.layout import Layout
from ptoperator.render.pods import resources
from ptoperator.render.pods.command import program
from ptoperator.render.pods.environment_variables import HOSTS_PER_SLICE, TERMINATION_LOG, container_env, value
from ptoperator.render.serving.cloud_run import FUSE_DRIVER, MACHINES

GPU_ATTEMPT_S, CPU_ATTEMPT_S = 3600, 168 * 3600
"""The longest attempt of a task with and without a GPU; 12 hours with one are in preview (docs.cloud.google.com/run,
task timeout)."""
MAX_RETRIES = 10
"""The most that Cloud Run takes."""
BUCKETS = "/gcs"
"""`file:///gcs/BUCKET/…` in a job is that bucket, mounted: the place that Google's other services use."""
_JOB, _FILE = "POSTTRAIN_JOB", "/tmp/job.yaml"
_MAX_VARIABLE = 32 * 1024
_WRITE = f'printf %s "${_JOB}" > {_FILE} && exec "$@"'
_ON_CPU = ("4", "16Gi")
_MOUNTED = re.compile(rf"file://{BUCKETS}/([a-z0-9][a-z0-9._-]*)")
_LOCAL = re.compile(rf"file://(?!{BUCKETS}/)\S*")


def attempt_s(layout: Layout) -> int:
    """Return the time limit of one attempt."""
    limit = GPU_ATTEMPT_S if layout.accelerator.is_gpu else CPU_ATTEMPT_S
    return min(limit, layout.job.spec.run_policy.active_deadline_seconds or limit)


def retries(layout: Layout) -> int:
    """Return how many attempts may follow the first."""
    return min(layout.job.spec.run_policy.max_restarts, MAX_RETRIES)


def cloud_run_job(layout: Layout) -> Manifest:
    """Return the manifest. Raises SpecError for what Cloud Run does not have."""
    if findings := list(_refusals(layout)):
        raise SpecError(findings)
    gpu = layout.accelerator.is_gpu
    redundancy = {"run.googleapis.com/gpu-zonal-redundancy-disabled": "true"} if gpu else {}
    return {
        "apiVersion": "run.googleapis.com/v1",
        "kind": "Job",
        "metadata": {"name": layout.name, "labels": {"posttrain-job": layout.name}},
        "spec": {
            "template": {
                "metadata": {"annotations": {"run.googleapis.com/execution-environment": "gen2", **redundancy}},
                "spec": {"taskCount": 1, "parallelism": 1, "template": {"spec": _task(layout)}},
            }
        },
    }


def _task(layout: Layout) -> Manifest:
    selector = {"run.googleapis.com/accelerator": layout.accelerator.gke_accelerator}
    volumes = [*_buckets(layout), *_scratch(layout)]
    return {
        "maxRetries": retries(layout),
        "timeoutSeconds": attempt_s(layout),
        **({"nodeSelector": selector} if layout.accelerator.is_gpu else {}),
        "containers": [
            {
                "name": "trainer",
                "image": layout.trainer_image,
                "command": ["/bin/sh", "-c", _WRITE, "sh", *program(layout).command],
                "args": ["run", _FILE],
                "env": [*_env(layout), value(_JOB, job_file(layout))],
                "resources": {"limits": _limits(layout)},
                **({"volumeMounts": [mount for _, mount in volumes]} if volumes else {}),
            }
        ],
        **({"volumes": [volume for volume, _ in volumes]} if volumes else {}),
    }


def _env(layout: Layout) -> Iterator[Manifest]:
    """Yield the trainer's variables without those of pods; secrets are Secret Manager's, in their latest version."""
    for variable in container_env(layout, 0):
        source = variable.get("valueFrom") or {}
        if "secretKeyRef" in source:
            latest = {"secretKeyRef": {"name": source["secretKeyRef"]["name"], "key": "latest"}}
            yield {"name": variable["name"], "valueFrom": latest}
        elif not source and variable["value"] != TERMINATION_LOG and variable["name"] != HOSTS_PER_SLICE:
            yield variable


def _limits(layout: Layout) -> Manifest:
    cpu, memory = MACHINES[layout.accelerator.gke_accelerator] if layout.accelerator.is_gpu else _ON_CPU
    chips = layout.accelerator.chips if layout.accelerator.is_gpu else 0
    amounts = resources.of(layout, "trainer", {"limits": {"cpu": cpu, "memory": memory}}, chips)
    return {name: str(amount) for name, amount in amounts["limits"].items()}


def _buckets(layout: Layout) -> list[tuple[Manifest, Manifest]]:
    """Return a volume and its mount for each bucket that the job names as a directory."""
    names = sorted(set(_MOUNTED.findall(job_file(layout))))
    return [
        (
            {
                "name": f"bucket-{index}",
                "csi": {
                    "driver": FUSE_DRIVER,
                    "volumeAttributes": {"bucketName": name, "mountOptions": "implicit-dirs"},
                },
            },
            {"name": f"bucket-{index}", "mountPath": f"{BUCKETS}/{name}"},
        )
        for index, name in enumerate(names)
    ]


def _scratch(layout: Layout) -> list[tuple[Manifest, Manifest]]:
    return [
        (
            {"name": each.name, "emptyDir": {"medium": "Memory"}},
            {"name": each.name, "mountPath": each.mount_path},
        )
        for each in layout.job.spec.volumes
    ]


def _refusals(layout: Layout) -> Iterator[Finding]:
    spec, chips = layout.job.spec, layout.accelerator
    if not (chips.is_cpu or (chips.gke_accelerator in MACHINES and chips.chips == 1)) or chips.slices != 1:
        accepted = "accepted on Cloud Run: l4-1, rtx-pro-6000-1 or cpu-N, one machine"
        yield Finding("spec.accelerator.type", chips.describe(), accepted, "several machines, and TPUs, are GKE's")
    if layout.samplers is not None:
        yield Finding("spec.rollout.placement", "separate", "accepted on Cloud Run: colocated")
    if spec.services:
        yield Finding("spec.services", "set", "accepted on Cloud Run: unset, and URLs in their place")
    if not spec.runtime.is_native:
        yield Finding("spec.runtime", "not the trainer", "accepted on Cloud Run: unset, the trainer")
    if spec.model.stage:
        yield Finding("spec.model.stage", "true", "accepted on Cloud Run: false", "`ptctl model stage` copies it once")
    for name, stated in (
        ("queue", spec.queue), ("pod", spec.pod), ("serviceAccountName", spec.service_account_name),
        ("imagePullSecrets", spec.image_pull_secrets), ("priorityClassName", spec.priority_class_name),
        ("serve", spec.serve),
    ):  # fmt: skip
        if stated:
            yield Finding(f"spec.{name}", "set", "accepted on Cloud Run: unset, it is Kubernetes'")
    for index, volume in enumerate(spec.volumes):
        if volume.empty_dir is None:
            hint = f"name a bucket as file://{BUCKETS}/BUCKET/… and it is mounted"
            yield Finding(f"spec.volumes[{index}]", volume.name, "accepted on Cloud Run: emptyDir", hint)
    for path in sorted(set(_LOCAL.findall(job_file(layout)))):
        accepted = f"accepted on Cloud Run: gs://, hf://, or file://{BUCKETS}/BUCKET/…, which is mounted"
        yield Finding("spec", path, accepted, "what a task writes elsewhere goes with it")
    if "/" not in layout.trainer_image:
        accepted = "accepted on Cloud Run: an image in a registry"
        yield Finding("spec.image", layout.trainer_image, accepted, "--trainer-image REGISTRY/posttrain-trainer:TAG")
    if len(job_file(layout).encode()) > _MAX_VARIABLE:
        yield Finding("spec", "a long job", f"accepted on Cloud Run: at most {_MAX_VARIABLE} bytes, in a variable")
