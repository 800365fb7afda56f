"""PostTrainJobs that the fake trainer runs: what a test does with them, and what it sees of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.builders.cluster.api_access import find
from tests.builders.cluster.manifests import eventually

from ptapi.status import PostTrainJobStatus
from ptkube.client import Kube
from ptkube.resources import CONFIGMAPS, JOBS, JOBSETS, PODS, POSTTRAINJOBS, SERVICES, Manifest, Resource

FAKE_TRAINER = Path(__file__).parent / "fake"
MADE_FOR_JOBS = (JOBSETS, JOBS, PODS, CONFIGMAPS, SERVICES)


class Jobs:
    """What a test does with jobs in its namespace, and what it sees of them."""

    def __init__(self, kube: Kube, namespace: str, folder: Path) -> None:
        self.kube = kube
        self.namespace = namespace
        self.runs = folder / "runs"

    def manifest(self, name: str, fake: dict[str, str] | None = None, **spec: Any) -> Manifest:
        """A small job run by the fake trainer."""
        env = {"PYTHONPATH": str(FAKE_TRAINER), **(fake or {})}
        base: Manifest = {
            "model": {"uri": "random://tiny"},
            "algorithm": {"sft": {}},
            "data": {"train": {"uri": "file:///nowhere.jsonl"}},
            "training": {"steps": 3, "batchSize": 8},
            "accelerator": {"type": "cpu-1"},
            "runPolicy": {"terminationGracePeriodSeconds": 10},
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "output": {"uri": f"file://{self.runs}"},
        }
        meta = {"name": name, "namespace": self.namespace}
        head = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": meta}
        return {**head, "spec": {**base, **spec}}

    def create(self, name: str, fake: dict[str, str] | None = None, **spec: Any) -> Manifest:
        return self.kube.create(POSTTRAINJOBS, self.manifest(name, fake, **spec))

    def edit(self, name: str, **policy: Any) -> None:
        self.kube.patch(POSTTRAINJOBS, name, self.namespace, {"spec": {"runPolicy": policy}})

    def mark(self, name: str, file: str = "finish") -> None:
        """Let the fake trainer go on that waits for this file in the job's run directory."""
        (self.runs / name).mkdir(parents=True, exist_ok=True)
        (self.runs / name / file).touch()

    def delete(self, name: str) -> None:
        self.kube.delete(POSTTRAINJOBS, name, self.namespace)

    def status(self, name: str) -> PostTrainJobStatus:
        job = self.kube.get(POSTTRAINJOBS, name, self.namespace)
        return PostTrainJobStatus.model_validate(job.get("status") or {})

    def wait_phase(self, name: str, *phases: str) -> PostTrainJobStatus:
        self.wait(lambda: str(self.status(name).phase) in phases, shown=lambda: self.status(name))
        return self.status(name)

    @staticmethod
    def wait(is_so: Callable[[], Any], timeout_s: float = 600.0, shown: Callable[[], Any] = lambda: "") -> None:
        eventually(is_so, timeout_s, shown)

    def left(self, name: str) -> list[str]:
        """Everything that was made for a job and is still there."""
        made = [
            f"{resource.kind} {item['metadata']['name']}"
            for resource in MADE_FOR_JOBS
            for item in self.kube.list(resource, self.namespace).items
            if name in item["metadata"]["name"]
        ]
        own = [] if self.find(POSTTRAINJOBS, name) is None else [f"PostTrainJob {name}"]
        return [*own, *made]

    def find(self, resource: Resource, name: str) -> Manifest | None:
        return find(self.kube, resource, name, self.namespace)

    def pods(self, name: str) -> list[Manifest]:
        return self.kube.list(PODS, self.namespace, labels=f"posttrain.dev/job={name}").items
