"""Thousands of jobs through the real controller code, in a cluster in memory and in simulated time.

The operator's own reconciler, caches, plan and status, on the API server of the unit tests (`tests/builders/operator`).
A clock that only this program moves stands for time: a look takes as long as it took of the processor, as if one core
did nothing else and the API server answered at once. All jobs are made at once. `--line` lets them stand in line for
nodes that fit a hundredth of them; else each has its own CPU node. Prints looks and jobs per second of the processor,
calls per job by verb and kind, how long a look had to wait for its turn, and the memory of the process, in which the
pretended API server is contained.

    python benchmarks/operator_and_cli/simulated_jobs.py [--jobs 5000] [--line] [--most-calls 16]
"""

import argparse
import heapq
import itertools
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.builders.operator.world import NAMESPACE, Api, Operator, Ref, World, copied, job_manifest

from ptkube import timestamps
from ptkube.client import ListResult
from ptkube.resources import JOBSETS, NODES, PODS, POSTTRAINJOBS, Manifest, Resource
from ptoperator.kube import labels
from ptoperator.observe import run_directory
from ptoperator.observe.cache import Key
from ptoperator.observe.watch_caches import WATCHED
from ptoperator.settings import Settings

SETTLE_S = 0.5
POD_STARTS_S, POD_RUNS_S = 2.0, 60.0
CHIPS = "v6e-4"
_TPU_NODE = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x2"}


class IndexedApi(Api):
    """Finds the objects of a kind, or of a job, without a walk through all."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._groups: dict[tuple[str, str], dict[Ref, Manifest]] = defaultdict(dict)

    def list(
        self, r: Resource, namespace: str | None = None, *, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        """Return the objects of a kind that match."""
        every = self.objects
        self.objects = self._groups[r.kind, _job_of_selector(labels or "")]
        try:
            return super().list(r, namespace, labels=labels, fields=fields)
        finally:
            self.objects = every

    def put(self, r: Resource, item: Manifest) -> None:
        """Another controller's write."""
        super().put(r, item)
        self._group((r.kind, item["metadata"]["namespace"], item["metadata"]["name"]), item)

    def remove(self, ref: Ref) -> None:
        """Remove an object."""
        for job in ("", _job_of(self.objects[ref])):
            self._groups[ref[0], job].pop(ref, None)
        super().remove(ref)

    def _store(self, ref: Ref, item: Manifest, verb: str) -> Manifest:
        answer = super()._store(ref, item, verb)
        self._group(ref, item)
        return answer

    def _group(self, ref: Ref, item: Manifest) -> None:
        for job in {"", _job_of(item)}:
            self._groups[ref[0], job][ref] = item

    def _count(self, what: str) -> None:
        self.writes += 1  # no log: it would be the largest thing here


class News(dict[Key, None]):
    """Keys that the operator is to look at, handed on to the simulation's queue."""

    def __init__(self, simulation: "Simulation") -> None:
        super().__init__()
        self._simulation = simulation

    def add(self, key: Key) -> None:
        """Add a key."""
        if key not in self:
            self[key] = None
            self._simulation.call(key)

    def discard(self, key: Key) -> None:
        """Drop a key."""
        self.pop(key, None)

    def __ior__(self, keys: Iterable[Key]) -> "News":  # type: ignore[override,misc]
        for key in keys:
            self.add(key)
        return self


class Simulation:
    """The queue of what happens next, and the controllers that are not ours."""

    def __init__(self, count: int, nodes: int = 0) -> None:
        """nodes: that all jobs stand in line for; 0: each has its own."""
        self.api = IndexedApi()
        self._heap: list[tuple[datetime, int, Key | Ref]] = []
        self._order = itertools.count()
        self._finished: dict[Key, datetime] = {}
        self._free_nodes = nodes or count
        self._unscheduled: deque[Ref] = deque()
        self.operator = Operator(World(self.api), settings=Settings())
        self.operator.client = Counting(self.api)
        self.operator.news = News(self)  # type: ignore[assignment]
        self.ended: set[str] = set()
        self.looks, self.cpu_s, self.longest_s, self._count = 0, 0.0, 0.0, count
        chips: Manifest = {"accelerator": {"type": CHIPS}} if nodes else {}
        for index in range(nodes):
            self._make_node(index)
        for index in range(count):
            output = {"uri": f"gs://lab/{index}"}
            self.api.create(POSTTRAINJOBS, job_manifest(f"job-{index:05d}", preflight="Skip", output=output, **chips))

    def call(self, key: Key) -> None:
        """Let a key be looked at as soon as its last look is over for some time."""
        settled = self._finished.get(key, self.api.now) + timedelta(seconds=SETTLE_S)
        self._push(max(self.api.now, settled if key in self._finished else self.api.now), key)

    def run(self) -> None:
        """Go on until all jobs have ended."""
        self._deliver()
        while len(self.ended) < self._count:
            due, _, what = heapq.heappop(self._heap)
            self.api.now = max(self.api.now, due)
            if len(what) == 3:
                self._change_pod(what)
            elif what in self.operator.news or self.operator.timers.get(what) == due:
                self._look(what, due)
            self._deliver()

    def _look(self, key: Key, due: datetime) -> None:
        self.longest_s = max(self.longest_s, (self.api.now - due).total_seconds())
        began = time.process_time()
        self.operator.look(key)
        took = time.process_time() - began
        self.cpu_s += took
        self.looks += 1
        self.api.now += timedelta(seconds=took)
        self._finished[key] = self.api.now
        if key in self.operator.timers:
            self._push(self.operator.timers[key], key)

    def _deliver(self) -> None:
        """Tell operator and controllers what changed."""
        changes = self.api.changes
        while changes:
            self.operator.hear()
            self.api.changes = []
            self.operator.delivered = dict.fromkeys(WATCHED, 0)
            for kind, item in changes:
                self._react(kind, item)
            changes = self.api.changes

    def _react(self, kind: str, item: Manifest) -> None:
        name = item["metadata"]["name"]
        if (kind, item["kind"]) == ("ADDED", JOBSETS.kind):
            pod = self._make_pod(item)
            self._push(self.api.now + timedelta(seconds=POD_STARTS_S), (PODS.kind, NAMESPACE, pod))
        elif item["kind"] == POSTTRAINJOBS.kind and (item.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self.ended.add(name)

    def _make_pod(self, jobset: Manifest) -> str:
        template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        name = f"{jobset['metadata']['name']}-0"
        marks = {**template["metadata"]["labels"], labels.RESTART_ATTEMPT: "0"}
        body = {"metadata": {"name": name, "namespace": NAMESPACE, "labels": marks}, "spec": copied(template["spec"])}
        self.api.create(PODS, {**body, "status": {"phase": "Pending"}})
        return name

    def _change_pod(self, ref: Any) -> None:
        """Start a pod if a node is free, or end it and its JobSet."""
        pod = self.api.objects[ref]
        if pod["status"]["phase"] == "Pending":
            if not self._free_nodes:
                self._unscheduled.append(ref)
                return
            self._free_nodes -= 1
            self.operator.world.start(pod)
            self._push(self.api.now + timedelta(seconds=POD_RUNS_S), ref)
            return
        self._free_nodes += 1
        if self._unscheduled:
            self._push(self.api.now, self._unscheduled.popleft())
        pod["status"]["phase"] = "Succeeded"
        self.api.put(PODS, pod)
        jobset = self.api.objects[JOBSETS.kind, NAMESPACE, pod["metadata"]["labels"][labels.JOB]]
        ended = {"type": "Completed", "status": "True", "lastTransitionTime": timestamps.to_text(self.api.now)}
        jobset["status"] = {"conditions": [{**ended, "reason": "AllJobsCompleted", "message": "completed"}]}
        self.api.put(JOBSETS, jobset)

    def _make_node(self, index: int) -> None:
        marks = {**_TPU_NODE, labels.NODE_POOL: f"pool-{index}"}
        meta = {"name": f"n{index}", "namespace": "", "uid": f"n{index}", "labels": marks}
        self.api.put(NODES, {"metadata": meta, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})

    def _push(self, due: datetime, what: Any) -> None:
        heapq.heappush(self._heap, (due, next(self._order), what))


class Counting:
    """Counts what the operator asks of the API server."""

    def __init__(self, api: IndexedApi) -> None:
        self._api = api

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._api, verb)

        def counted(r: Resource, *rest: Any, **more: Any) -> Any:
            self._api.calls[f"{verb} {r.plural}"] += 1
            return call(r, *rest, **more)

        return counted


def _job_of(item: Manifest) -> str:
    return str((item["metadata"].get("labels") or {}).get(labels.JOB) or "")


def _job_of_selector(selector: str) -> str:
    return selector.partition("=")[2] if selector.startswith(labels.JOB) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--line", action="store_true", help="let all jobs stand in line for few nodes")
    parser.add_argument("--most-calls", type=float, help="fail if a job takes more API calls than this")
    options = parser.parse_args()
    run_directory._read_bytes = lambda uri: None  # nothing trains
    before_mb = psutil.Process().memory_info().rss / 2**20
    simulation = Simulation(options.jobs, max(1, options.jobs // 100) if options.line else 0)
    simulation.run()
    count, calls, cpu_s = options.jobs, simulation.api.calls, simulation.cpu_s
    simulated_s = (simulation.api.now - datetime.fromisoformat("2026-01-01T00:00:00+00:00")).total_seconds()
    memory_mb = psutil.Process().memory_info().rss / 2**20
    print(f"{count} jobs ended in {simulated_s:.0f} simulated s, {cpu_s:.1f} CPU-s of the operator")
    print(f"{simulation.looks / count:.1f} looks per job, {1000 * cpu_s / simulation.looks:.2f} ms of processor each")
    print(f"{count / cpu_s:.1f} jobs and {simulation.looks / cpu_s:.0f} looks per CPU-s")
    print(f"longest wait of a look: {simulation.longest_s:.1f} s")
    print(f"API calls: {calls.total() / count:.1f} per job")
    print(", ".join(f"{name} {number / count:.1f}" for name, number in calls.most_common()))
    if options.most_calls and calls.total() > options.most_calls * count:
        raise SystemExit(f"{calls.total() / count:.1f} API calls per job, more than {options.most_calls:g}")
    print(f"memory: {memory_mb:.0f} MB, {memory_mb - before_mb:.0f} MB of them for jobs and the pretended API server")


if __name__ == "__main__":
    main()
