"""How busy the GPUs of each job are, by GKE's DCGM exporter: one pod per GPU node, read through the API server.

The exporter names the pod that holds a GPU, so its samples are summed by the pod's job. Left out: GPUs that several
pods share, and Cloud Monitoring, where the same numbers lie for later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ptkube.client import Kube
from ptkube.errors import ApiError
from ptkube.resources import PODS

EXPORTER_NAMESPACE = "gke-managed-system"
EXPORTER = "app.kubernetes.io/name=gke-managed-dcgm-exporter"
_PORT = 9400
_AT_ONCE = 8
UTILISATION, TENSOR, MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_FB_USED"
"""Per cent of time with a kernel running; share of cycles in tensor cores; framebuffer in use, in MiB."""
_SAMPLE = re.compile(r"(\w+)\{(.*)\}\s+(\S+)(?:\s+\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One GPU's value of one metric, and the pod that holds it."""

    metric: str
    pod: tuple[str, str]
    value: float


@dataclass(frozen=True)
class GpuUse:
    """A job's GPUs. duty: mean share of time with a kernel running; tensor: of cycles in tensor cores, 0 to 1.

    memory_gib: the most that one of them holds now. None: not told.
    """

    duty: float | None
    tensor: float | None
    memory_gib: float | None


def samples(text: str) -> Iterator[Sample]:
    """Yield the samples, in Prometheus' text format, of GPUs that a pod holds."""
    for line in text.splitlines():
        matched = _SAMPLE.fullmatch(line.strip())
        if matched is None or matched[1] not in (UTILISATION, TENSOR, MEMORY):
            continue
        labels, value = dict(_LABEL.findall(matched[2])), _number(matched[3])
        if labels.get("pod") and value is not None:
            yield Sample(matched[1], (labels.get("namespace", ""), labels["pod"]), value)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value != value else value  # DCGM's NaN: this GPU does not tell


def by_job(read: Iterable[Sample], jobs: Mapping[tuple[str, str], str]) -> dict[str, GpuUse]:
    """Return the use of each job. jobs: the job, NAMESPACE/NAME, of a pod."""
    values: dict[str, dict[str, list[float]]] = {}
    for each in read:
        if job := jobs.get(each.pod):
            values.setdefault(job, {}).setdefault(each.metric, []).append(each.value)
    return {job: _use(of) for job, of in values.items()}


def _use(of: Mapping[str, list[float]]) -> GpuUse:
    busy, tensor, memory = (of.get(metric) or [] for metric in (UTILISATION, TENSOR, MEMORY))
    return GpuUse(
        sum(busy) / len(busy) / 100 if busy else None,
        sum(tensor) / len(tensor) if tensor else None,
        max(memory) / 1024 if memory else None,
    )


def read(kube: Kube) -> list[Sample]:
    """Return the samples of every exporter that answers. Raises ApiError where none does."""
    pods = [
        pod["metadata"]["name"]
        for pod in kube.list(PODS, EXPORTER_NAMESPACE, labels=EXPORTER).items
        if (pod.get("status") or {}).get("phase") == "Running"
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        texts = list(pool.map(lambda name: _text(kube, name), pods))
    refused = next((each for each in texts if isinstance(each, ApiError)), None)
    if refused is not None and all(isinstance(each, ApiError) for each in texts):
        raise refused  # one node that goes away hides no others
    return [sample for text in texts if isinstance(text, str) for sample in samples(text)]


def _text(kube: Kube, pod: str) -> str | ApiError:
    try:
        return kube.pod_http(pod, EXPORTER_NAMESPACE, _PORT, "metrics")
    except ApiError as error:
        return error
