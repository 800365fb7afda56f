"""What only a pod can tell: is the trainer's image pulled, do pods find each other, may a trainer use the bucket.

Two short-lived pods of one Job, with the trainer's image and service account. The Job is deleted at the end, also by
Ctrl-C; should this process be killed, it ends by its deadline, and its TTL deletes it and its Service.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ptctl.cluster.doctor import inside_pod
from ptctl.cluster.doctor.finding import Finding, error, ok, warning
from ptctl.cluster.doctor.health import PULL_REASONS, pull_fix
from ptctl.ui import interrupts
from ptkube.client import Kube
from ptkube.errors import NotFound
from ptkube.objects import condition, container_statuses, pod_phase
from ptkube.resources import JOBS, PODS, SERVICES, Manifest
from ptoperator.kube import labels
from ptoperator.render.pods.overrides import USER_ID

START_S = 300.0
"""Longest wait for the pods: the image may have to be pulled, and a node to be made."""
_LIFETIME_S = 600
_KEPT_S = 60
_PORT = 8471
_POLL_S = 0.5
_EMULATOR = "STORAGE_EMULATOR_HOST"


@dataclass(frozen=True)
class TrainerPod:
    """What trainers of a namespace run as."""

    namespace: str
    image: str
    account: str = ""


def check(kube: Kube, trainer: TrainerPod, bucket: str, start_s: float = START_S) -> Iterator[Finding]:
    """Yield what pods of the trainer can and cannot do. bucket: gs://BUCKET/PATH, or empty."""
    with _job(kube, trainer, bucket) as name:
        yield from _findings(kube, trainer, name, bucket, start_s)


@contextmanager
def _job(kube: Kube, trainer: TrainerPod, bucket: str) -> Iterator[str]:
    """Give the name of the Job with the two pods, which is deleted at the end."""
    name = f"posttrain-doctor-{secrets.token_hex(3)}"
    with interrupts.handled(interrupts.raise_once, signal.SIGINT, signal.SIGTERM):
        try:
            made = kube.create(JOBS, _manifest(name, trainer, bucket))
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["metadata"]["uid"]}
            meta = {**_metadata(name, trainer), "ownerReferences": [owner]}
            spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}}
            kube.create(SERVICES, {"metadata": meta, "spec": spec})
            yield name
        finally:
            with suppress(NotFound):
                kube.delete(JOBS, name, trainer.namespace)


def _metadata(name: str, trainer: TrainerPod) -> Manifest:
    marks = {labels.NAME: "posttrain", labels.MANAGED_BY: "ptctl", labels.COMPONENT: "doctor"}
    return {"name": name, "namespace": trainer.namespace, "labels": marks}


def _manifest(name: str, trainer: TrainerPod, bucket: str) -> Manifest:
    container = {
        "name": "doctor",
        "image": trainer.image,
        "command": ["python", "-c", Path(inside_pod.__file__).read_text()],
        "args": [f"{name}-1.{name}:{_PORT}", "$(JOB_COMPLETION_INDEX)", bucket],
        "env": [{"name": _EMULATOR, "value": os.environ[_EMULATOR]}] if _EMULATOR in os.environ else [],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    user = {"runAsNonRoot": True, "runAsUser": USER_ID, "runAsGroup": USER_ID}
    pod = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": 1,
        **({"serviceAccountName": trainer.account} if trainer.account else {}),
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {
        "metadata": _metadata(name, trainer),
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimit": 0,
            "activeDeadlineSeconds": _LIFETIME_S,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": _metadata(name, trainer)["labels"]}, "spec": pod},
        },
    }


def _findings(kube: Kube, trainer: TrainerPod, name: str, bucket: str, start_s: float) -> Iterator[Finding]:
    until = time.monotonic() + start_s
    while True:
        pods = kube.list(PODS, trainer.namespace, labels=f"job-name={name}").items
        first = next((pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-0")), None)
        if first is not None and pod_phase(first) == "Succeeded":
            yield ok("image", f"a node has pulled {trainer.image}")
            yield from _results(kube, trainer, first, bucket)
            return
        problem = _problem(trainer, pods, is_late=time.monotonic() > until)
        if problem is not None:
            yield problem
            return
        time.sleep(_POLL_S)


def _results(kube: Kube, trainer: TrainerPod, pod: Manifest, bucket: str) -> Iterator[Finding]:
    lines = [*kube.pod_logs(pod["metadata"]["name"], trainer.namespace, container="doctor")]
    problems = json.loads(lines[-1])
    if problems["dns"]:
        fix = "kubectl get pods -n kube-system -l k8s-app=kube-dns; does a NetworkPolicy keep the pods apart?"
        yield error("dns", f"pods do not reach each other: {problems['dns']}", fix)
    else:
        yield ok("dns", "pods reach each other by name")
    if problems["bucket"]:
        account = f"{trainer.namespace}/{trainer.account or 'default'}"
        fix = f"grant roles/storage.objectUser on the bucket to the ServiceAccount {account} (docs/guides/gke.md)"
        yield error("bucket", f"trainers cannot use {bucket}: {problems['bucket']}", fix)
    elif bucket:
        yield ok("bucket", f"trainers write, read and delete in {bucket}")


def _problem(trainer: TrainerPod, pods: list[Manifest], *, is_late: bool) -> Finding | None:
    """Return why the pods will not answer, None while they may."""
    for pod in pods:
        for status in container_statuses(pod):
            waiting = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in PULL_REASONS:
                message = str(waiting.get("message") or waiting["reason"])
                return error("image", f"{trainer.image} cannot be pulled: {message}", pull_fix(message))
        if pod_phase(pod) == "Failed":
            ended = [(s.get("state") or {}).get("terminated") or {} for s in container_statuses(pod)]
            reason = (pod.get("status") or {}).get("message") or f"exit code {(ended or [{}])[0].get('exitCode')}"
            return error(
                "image", f"a pod with {trainer.image} fails: {reason}", "is it an image of posttrain's trainer?"
            )
    if is_late:
        reasons = {str((condition(pod, "PodScheduled") or {}).get("message") or pod_phase(pod)) for pod in pods}
        text = "; ".join(sorted(reasons)) or "no pod was made"
        return warning("pods", f"the doctor's pods do not start: {text}", "kubectl describe nodes; CPU pools need room")
    return None
