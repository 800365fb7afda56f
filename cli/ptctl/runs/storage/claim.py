"""Files of a run directory on a PersistentVolumeClaim, fetched by a short-lived pod that mounts the claim.

The pod has the trainer's image, user and service account, prints the files as text in its log, and is deleted at the
end, also by Ctrl-C; should that fail, it ends by itself and goes with the job. It needs pods and their logs alone; only
whole models, which no log holds, are read by `exec`. A claim that one node alone may mount is read on the node where
the trainer runs.
"""

from __future__ import annotations

import base64
import binascii
import io
import secrets
import signal
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ptctl.errors import CliError, MissingError
from ptctl.jobs.view import JobView
from ptctl.runs.storage import bucket, directory
from ptctl.ui import interrupts
from ptctl.ui.app import App, Target
from ptkube.errors import ApiError, NotFound
from ptkube.objects import condition, pod_phase
from ptkube.pod_exec import Container
from ptkube.resources import JOBSETS, PODS, POSTTRAINJOBS, Manifest
from ptoperator.kube import labels
from ptoperator.kube.names import cut

if TYPE_CHECKING:
    from ptkube.client import Kube

START_TIMEOUT_S = 180.0
"""Longest wait for the pod: its image may have to be pulled."""
LIFETIME_S = 300
COPY_LIFETIME_S = 6 * 3600
"""For whole models, whose files are read one after the other."""
ALL = 1_000_000
POLL_S = 0.3
_CONTAINER = "reader"
_BEGIN, _END = "posttrain-begin", "posttrain-end"
# $1: the run directory; $2: a pattern in it; $3: how many of the newest files.
_SCRIPT = (
    f'cd "$1" || exit 3; set -- $(ls -d $2 2>/dev/null | tail -n "$3"); echo {_BEGIN}; '
    f'test $# -eq 0 || tar -czf - -- "$@" | base64; echo {_END}'
)


def is_elsewhere(job: JobView) -> bool:
    """Return True if the run directory is on a claim, and this machine does not see it."""
    return _claimed_volume(job) is not None and not Path(job.run_uri.removeprefix("file://")).exists()


@contextmanager
def run_directory(app: App, target: Target, job: JobView, pattern: str, newest: int = ALL) -> Iterator[Path]:
    """Give the run directory as this machine sees it, or a copy of a pattern's newest files if a claim holds it."""
    is_in_bucket = job.run_uri.startswith("gs://")
    if not is_in_bucket and not is_elsewhere(job):
        yield directory.local_path(job.run_uri, pattern)
        return
    with tempfile.TemporaryDirectory(prefix="posttrain-") as folder:
        if is_in_bucket:
            bucket.copy(job.run_uri, Path(folder), pattern, newest)
        else:
            copy(app.connect(target), job, Path(folder), pattern, newest)
        yield Path(folder)


def copy(kube: Kube, job: JobView, folder: Path, pattern: str, newest: int = ALL) -> None:
    """Copy the newest files of a pattern from a run directory on a claim into a folder here."""
    command = ["/bin/sh", "-c", _SCRIPT, "sh", job.run_uri.removeprefix("file://"), pattern, str(newest)]
    with _reader(kube, job, command, LIFETIME_S, "Succeeded") as name:
        lines = list(kube.pod_logs(name, job.namespace, container=_CONTAINER))
    _unpack(job, lines, folder)


@contextmanager
def mounted(kube: Kube, job: JobView) -> Iterator[Container]:
    """Give a container that sees the run directory, in a pod that is deleted at the end."""
    with _reader(kube, job, ["sleep", str(COPY_LIFETIME_S)], COPY_LIFETIME_S, "Running") as name:
        yield Container(name, job.namespace, _CONTAINER)


@contextmanager
def _reader(kube: Kube, job: JobView, command: list[str], lifetime_s: int, phase: str) -> Iterator[str]:
    """Give the name of a pod that mounts the claim, once it has reached a phase."""
    manifest = _pod(kube, job, command, lifetime_s)
    name = manifest["metadata"]["name"]
    with interrupts.handled(interrupts.raise_once, signal.SIGINT, signal.SIGTERM):
        try:
            kube.create(PODS, manifest)
            _wait(kube, job, name, phase)
            yield name
        finally:
            with suppress(NotFound):
                kube.delete(PODS, name, job.namespace)


def _claimed_volume(job: JobView) -> Manifest | None:
    """Return the volume with a claim that holds the run directory; None if there is none."""
    path = job.run_uri.removeprefix("file://")
    volumes = job.raw["spec"].get("volumes") or []
    holding = (each for each in volumes if path.startswith(f"{each['mountPath']}/"))
    return next((each for each in holding if "persistentVolumeClaim" in each), None)


def _pod(kube: Kube, job: JobView, command: list[str], lifetime_s: int) -> Manifest:
    volume, template = _claimed_volume(job), _template(kube, job)
    assert volume is not None
    trainer = template["containers"][0]
    kept = ("serviceAccountName", "imagePullSecrets", "securityContext", "tolerations")
    node = _node(kube, job)
    owner = {"apiVersion": POSTTRAINJOBS.api_version, "kind": POSTTRAINJOBS.kind, "name": job.name, "uid": job.uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{cut(job.name, 40)}-reader-{secrets.token_hex(3)}",
            "namespace": job.namespace,
            "labels": {labels.NAME: "posttrain", labels.MANAGED_BY: "ptctl", labels.COMPONENT: "reader"},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": lifetime_s,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            **{key: template[key] for key in kept if key in template},
            **({"nodeName": node} if node else {}),
            "containers": [
                {
                    "name": _CONTAINER,
                    "image": trainer["image"],
                    "command": command,
                    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
                    "securityContext": trainer.get("securityContext") or {},
                    "volumeMounts": [{"name": "run", "mountPath": volume["mountPath"], "readOnly": True}],
                }
            ],
            # Not read-only as a volume: where the trainer has it attached to write, that would be refused.
            "volumes": [{"name": "run", "persistentVolumeClaim": volume["persistentVolumeClaim"]}],
        },
    }


def _template(kube: Kube, job: JobView) -> Manifest:
    """Return the trainer's pod as the operator rendered it."""
    try:
        jobset = kube.get(JOBSETS, job.job_set, job.namespace) if job.job_set else None
    except NotFound:
        jobset = None
    if jobset is None:
        raise MissingError(
            f"job {job.name!r} has no JobSet whose pods could read {job.run_uri}",
            "mount the claim in a pod of your own and read the files there",
        )
    template: Manifest = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return template


def _node(kube: Kube, job: JobView) -> str:
    """Return the node of the running trainer, empty if none runs."""
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items
    nodes = [str(pod["spec"].get("nodeName") or "") for pod in pods if pod_phase(pod) == "Running"]
    return nodes[0] if nodes else ""


def _wait(kube: Kube, job: JobView, name: str, expected: str) -> None:
    """Wait until the pod runs, or has printed everything."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        pod = kube.get(PODS, name, job.namespace)
        phase = pod_phase(pod)
        if phase == expected:
            return
        if phase == "Failed" or time.monotonic() > deadline:
            why = "failed" if phase == "Failed" else f"is {phase} after {START_TIMEOUT_S:.0f} s"
            raise CliError(f"the pod that reads {job.run_uri} {why}{_reason(kube, job, pod)}")
        time.sleep(POLL_S)


def _reason(kube: Kube, job: JobView, pod: Manifest) -> str:
    """Return what the pod says of itself: the scheduler's words, or the end of its log."""
    scheduled = condition(pod, "PodScheduled") or {}
    reason = (pod.get("status") or {}).get("message") or scheduled.get("message") or ""
    with suppress(ApiError):
        lines = list(kube.pod_logs(pod["metadata"]["name"], job.namespace, container=_CONTAINER, tail=3))
        reason = reason or " ".join(lines)
    return f": {reason}" if reason else ""


def _unpack(job: JobView, lines: list[str], folder: Path) -> None:
    if _BEGIN not in lines or _END not in lines:
        raise CliError(
            f"the files of {job.run_uri} are more than a pod's log holds",
            "mount the claim in a pod of your own and copy them from there",
        )
    encoded = "".join(lines[lines.index(_BEGIN) + 1 : lines.index(_END)])
    if not encoded:
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(encoded, validate=True)), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, binascii.Error, EOFError, OSError) as error:
        raise CliError(f"the pod's copy of {job.run_uri} cannot be read: {error}") from None
