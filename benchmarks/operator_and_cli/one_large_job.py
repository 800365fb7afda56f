"""One very large job through the real controller code, in a cluster in memory: what its pods cost the operator.

    python benchmarks/operator_and_cli/one_large_job.py [--samplers 1000] [--batch 20]
    python benchmarks/operator_and_cli/one_large_job.py --accelerator tpu7x-18432

A job with so many samplers (the spec's bound is lifted for it: what lies behind the bound is the question), or on one
slice of so many hosts. No trainer reports a step. Its pods appear, are scheduled and start, `--batch` of them between
two looks of the operator; then every tenth is lost. Prints for each of these stages the looks, their processor time
(the pretended cluster's included), the API calls, the events, and the bytes that the watches deliver; and the size of
the job's status. Bytes are of the JSON as the operator makes it: a real API server adds what its controllers write
(managed fields, conditions, container statuses).
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from simulated_jobs import Counting, IndexedApi
from tests.builders.operator.world import NAMESPACE, Operator, World, copied, job_manifest

from ptapi.spec import PostTrainJob, PostTrainJobSpec
from ptapi.spec.rollouts.rollout import Rollout, Separate
from ptapi.status import PostTrainJobStatus
from ptapi.status.run import SamplersStatus
from ptkube.resources import EVENTS, JOBSETS, PODS, POSTTRAINJOBS, Manifest
from ptoperator.kube import labels
from ptoperator.observe import run_directory
from ptoperator.settings import Settings

NAME = "large"


def lift_bounds() -> None:
    """Let the spec and the status take any number of samplers."""
    Separate.model_fields["replicas"].metadata.clear()
    SamplersStatus.model_fields["away"].metadata.clear()
    for model in (Separate, Rollout, PostTrainJobSpec, PostTrainJob, SamplersStatus, PostTrainJobStatus):
        model.model_rebuild(force=True)


class LargeJob:
    """The job, its cluster, and what was measured since the last stage."""

    def __init__(self, accelerator: str, samplers: int, batch: int) -> None:
        self.api, self._batch = IndexedApi(), batch
        self.world = World(self.api)
        self.operator = Operator(self.world, settings=Settings())
        self.operator.client = Counting(self.api)
        self._looks, self._began, self._changes = 0, time.process_time(), 0
        rollout = {"placement": "separate", "separate": {"replicas": samplers}, "maxStaleness": 1} if samplers else {}
        body = job_manifest(
            NAME, accelerator={"type": accelerator}, preflight="Skip", output={"uri": "gs://lab/runs"},
            algorithm={"grpo": {}}, rewards=[{"builtin": "exact"}], rollout=rollout,
            training={"steps": 10, "batchSize": 18432},
        )  # fmt: skip
        self.api.create(POSTTRAINJOBS, body)

    @property
    def job(self) -> Manifest:
        """Return the job as it is in the API server."""
        return self.api.objects[POSTTRAINJOBS.kind, NAMESPACE, NAME]

    def look(self) -> None:
        """Let the operator look until there is nothing to do now."""
        self.operator.hear()
        while self.operator.due():
            self.operator.look(self.operator.due()[0])
            self._looks += 1
            self.operator.hear()
        self.world.tick(0.5)

    def make_pods(self) -> list[Manifest]:
        """Make all pods of the JobSet."""
        jobset = next(iter(self.api.kinds(JOBSETS.kind)))
        made = []
        for replicated in jobset["spec"]["replicatedJobs"]:
            of = replicated["template"]["spec"]
            for index in range(replicated["replicas"] * of["completions"]):
                job_index, host = divmod(index, of["completions"])
                made.append(self._pod(jobset, replicated, str(job_index), str(host)))
                self._after(len(made))
        self.look()
        return made

    def change(self, pods: list[Manifest], phase: str, *, is_ready: bool) -> None:
        """Give pods a phase, a batch between two looks."""
        for number, pod in enumerate(pods, 1):
            self.world.schedule(pod)
            pod["status"]["phase"] = phase
            ready = {"type": "Ready", "status": str(is_ready)}
            kept = [each for each in pod["status"].get("conditions") or [] if each["type"] != "Ready"]
            pod["status"]["conditions"] = [*kept, ready]
            self.api.put(PODS, pod)
            self._after(number)
        self.look()

    def stage(self, name: str) -> None:
        """Print what was measured since the last stage."""
        changed: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        for _, item in self.api.changes[self._changes :]:
            changed[item["kind"]] += 1
            sent[item["kind"]] += len(json.dumps(item))
        took, calls = time.process_time() - self._began, self.api.calls
        kinds = ", ".join(f"{kind} {changed[kind]:,} ({size / 1e6:.2f} MB)" for kind, size in sent.most_common(3))
        print(f"| {name} | {self._looks:,} | {took:.1f} | {calls.total():,} | {changed[EVENTS.kind]} | {kinds} |")
        self._looks, self._began, self._changes = 0, time.process_time(), len(self.api.changes)
        calls.clear()

    def _after(self, number: int) -> None:
        if number % self._batch == 0:
            self.look()

    def _pod(self, jobset: Manifest, replicated: Manifest, index: str, host: str) -> Manifest:
        template = replicated["template"]["spec"]["template"]
        place = {
            labels.REPLICATED_JOB_NAME: replicated["name"], labels.JOB_INDEX: index, labels.COMPLETION_INDEX: host,
            labels.RESTART_ATTEMPT: "0",
        }  # fmt: skip
        name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}-{host}"
        marks = {**template["metadata"]["labels"], **place}
        body = {"metadata": {"name": name, "namespace": NAMESPACE, "labels": marks}, "spec": copied(template["spec"])}
        self.api.create(PODS, {**body, "status": {"phase": "Pending"}})
        return self.api.objects[PODS.kind, NAMESPACE, name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="v6e-4")
    parser.add_argument("--samplers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=20, help="pods that change between two looks")
    options = parser.parse_args()
    lift_bounds()
    run_directory._read_bytes = lambda uri: None  # nothing trains
    large = LargeJob(options.accelerator, options.samplers, options.batch)
    print("| stage | looks | CPU-s | API calls | events | watched changes |\n| --- | --- | --- | --- | --- | --- |")
    large.look()
    large.stage("objects made")
    pods = large.make_pods()
    large.stage(f"{len(pods):,} pods appear")
    large.change(pods, "Running", is_ready=True)
    large.stage("all start")
    lost = pods[1::10]
    large.change(lost, "Pending", is_ready=False)
    large.stage(f"{len(lost):,} are lost")
    status = large.job["status"]
    print(f"phase {status['phase']}; status {len(json.dumps(status)):,} bytes, job {len(json.dumps(large.job)):,}")
    largest = sorted(((len(json.dumps(value)), key) for key, value in status.items()), reverse=True)[:3]
    print("largest of the status: " + ", ".join(f"{key} {size:,}" for size, key in largest))
    objects = [(len(json.dumps(item)), ref[0]) for ref, item in large.api.objects.items() if ref[0] != PODS.kind]
    print("largest objects: " + ", ".join(f"{kind} {size:,} bytes" for size, kind in sorted(objects, reverse=True)[:3]))


if __name__ == "__main__":
    main()
