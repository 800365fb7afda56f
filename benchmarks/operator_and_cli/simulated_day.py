"""A day of the operator in minutes: jobs come and go in simulated time, faults strike, and nothing may stay.

The operator's own reconciler, caches, plan and status, on the cluster and the GKE in memory of the unit tests. Jobs
arrive evenly: on CPUs, on spot pools, and in line for three nodes. Each runs for some minutes; some are suspended,
deleted or edited on the way, some fail or lose their node. Every quarter of an hour one fault of `FAULTS` for a minute
or two. Afterwards everything must go away, out of the cluster and out of the operator's memory.

Fails if a job is stuck, if anything is left in the cluster, in GKE, or in what the operator remembers of jobs, or if
the process grew by more than 5 % from the second third of the time to the last. Left out: time that a reconcile takes,
the operator's own death and its clock (`soak.py`), and progress more often than each minute.

    python benchmarks/operator_and_cli/simulated_day.py [--hours 24] [--jobs 1000] [--seed 0]
"""

import argparse
import gc
import itertools
import random
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sized
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.builders.operator.cloud_site import SETTINGS, Site
from tests.builders.operator.world import NAMESPACE, Api, World, job_manifest

from ptkube.errors import ApiError, Unreachable
from ptkube.objects import true_condition
from ptkube.resources import EVENTS, JOBSETS, NODES, POSTTRAINJOBS, Manifest, Resource
from ptoperator.kube import labels
from ptoperator.observe import run_directory
from ptoperator.observe.watch_caches import WATCHED

TICK_S = 5.0
FAULT_EVERY_S = 900.0
TTL_S = 300
NODES_IN_LINE = 3
LONGEST_END_S = 12 * 3600.0
GROWTH = 0.05
SAMPLE_S = 600.0
RUNS = "gs://lab/"
_SHAPE = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x2"}
KINDS: dict[str, Manifest] = {
    "cpu": {},
    "spot": {"accelerator": {"type": "v6e-4"}, "capacity": [{"type": "spot", "zones": ["us-east5-a", "us-east5-b"]}]},
    "line": {"accelerator": {"type": "v6e-4"}, "capacity": [{"type": "existing"}]},
}


class Faulty:
    """The operator's client: counts its calls, keeps no Events, and fails while `error` says so."""

    def __init__(self, api: Api, rng: random.Random) -> None:
        self._api, self._rng = api, rng
        self.calls: Counter[str] = Counter()
        self.error: ApiError | None = None
        self.share = 0.0

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._api, verb)

        def answered(r: Resource, *rest: Any, **more: Any) -> Any:
            self.calls[f"{verb} {r.plural}"] += 1
            if self.error is not None and self._rng.random() < self.share:
                raise self.error
            return rest[0] if r is EVENTS and verb == "create" else call(r, *rest, **more)

        return answered


@dataclass
class Day:
    """The cluster, its users, and what goes wrong."""

    hours: float
    jobs: int
    rng: random.Random
    site: Site = field(default_factory=lambda: Site(World(Api()), SETTINGS))
    deaf: frozenset[Resource] = frozenset()
    """Kinds whose watch tells nothing now."""
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    made: int = 0
    looks: int = 0
    memory_mb: list[float] = field(default_factory=list)
    _ends_at: dict[str, datetime] = field(default_factory=dict)
    _counted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.api, self.operator = self.site.world.api, self.site.operator
        self.api.log = deque(maxlen=10)  # type: ignore[assignment]
        self.client = self.operator.client = Faulty(self.api, self.rng)
        run_directory._read_bytes = lambda uri: self.site.world.files.get(uri.replace(RUNS, "file:///runs/"))
        run_directory._list_files = lambda folder: []
        for index in range(NODES_IN_LINE):
            meta = {
                "name": f"n{index}",
                "namespace": "",
                "uid": f"n{index}",
                "labels": {**_SHAPE, labels.NODE_POOL: index},
            }
            self.api.put(NODES, {"metadata": meta, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})

    def run(self) -> None:
        """Let the day pass, then let everything end. Raises TimeoutError with what does not."""
        began, seconds = self.api.now, self.hours * 3600
        for tick in itertools.count():
            age_s = tick * TICK_S
            if age_s >= seconds:
                break
            while self.made < self.jobs * age_s / seconds:
                self._make()
            if age_s % FAULT_EVERY_S == FAULT_EVERY_S / 2:
                self._fault()
            elif age_s % FAULT_EVERY_S == FAULT_EVERY_S / 2 + 120:
                self._mend()
            if age_s % 60 == 0:
                self._meddle()
            if age_s % SAMPLE_S == 0:
                self._tidy()
            self._tick()
        self._mend()
        while left := self._left():
            if (self.api.now - began).total_seconds() > seconds + LONGEST_END_S:
                raise TimeoutError(f"left after {LONGEST_END_S / 3600:.0f} more hours: {left}")
            for item in self.api.kinds(POSTTRAINJOBS.kind):
                self._suspend(item, False)
            self._tick()
        self.site.world.tick(3600)
        self._tick()  # whatever timers are left

    def remains(self) -> dict[str, int]:
        """Return what the operator still remembers of jobs, by where."""
        cache = self.operator.cache
        known = {each.name: getattr(cache, each.name) for each in fields(cache)}
        known |= {"timers": self.operator.timers, "news": self.operator.news}
        known |= {each.plural: self.operator.copies.of(each, None).items() for each in WATCHED}  # type: ignore[union-attr]
        return {name: len(each) for name, each in known.items() if isinstance(each, Sized) and each}

    @property
    def growth(self) -> float:
        """Return by how much the process grew from the second third of the time to the last."""
        third = max(1, len(self.memory_mb) // 3)
        return statistics.median(self.memory_mb[-third:]) / statistics.median(self.memory_mb[third : 2 * third]) - 1

    def _tick(self) -> None:
        if self.client.error is None:
            self.operator.hear(resources=[each for each in WATCHED if each not in self.deaf])
        for key in self.operator.due():
            self.operator.look(key)
            self.looks += 1
        self._kubelets()
        self.site.world.run_jobsets()
        self.site.world.collect()
        self.site.world.reap()
        self._count_ends()
        self.site.world.tick(TICK_S)

    def _make(self) -> None:
        self.made += 1
        kind = self.rng.choices(list(KINDS), (5, 3, 2))[0]
        policy = {"ttlSecondsAfterFinished": TTL_S, "maxRestarts": 3}
        spec: Manifest = {"preflight": "Skip", "output": {"uri": RUNS}, "runPolicy": policy, **KINDS[kind]}
        self.api.create(POSTTRAINJOBS, job_manifest(f"{kind}-{self.made:05d}", **spec))

    def _kubelets(self) -> None:
        """Start pods where there are nodes, let trainers report, and end them when their time has come."""
        in_line = 0
        for pod in self.site.world.unfinished:
            job, kind = pod["metadata"]["labels"][labels.JOB], pod["metadata"]["labels"][labels.JOB].partition("-")[0]
            in_line += kind == "line"
            if pod["status"]["phase"] == "Running":
                self._train(pod, job)
            elif kind == "cpu" or (kind == "line" and in_line <= NODES_IN_LINE) or self._has_pool(pod):
                self.site.world.start(pod)
                self._ends_at[pod["metadata"]["name"]] = self.api.now + timedelta(minutes=self.rng.uniform(2, 20))

    def _train(self, pod: Manifest, job: str) -> None:
        if self.api.now >= self._ends_at[pod["metadata"]["name"]]:
            self.site.world.exit(pod, 1 if self.rng.random() < 0.1 else 0)
        elif int(self.api.now.timestamp()) % 60 == 0:
            self.site.world.progress(self.rng.randrange(10), name=job)

    def _has_pool(self, pod: Manifest) -> bool:
        return any(
            pool.labels.get("posttrain-job-uid") == pod["metadata"]["labels"][labels.JOB_UID] and pool.nodes
            for pool in self.site.model.listed()
        )

    def _count_ends(self) -> None:
        for item in self.api.kinds(POSTTRAINJOBS.kind):
            failed = true_condition(item, "Failed")
            if item["metadata"]["uid"] not in self._counted and (failed or true_condition(item, "Complete")):
                self._counted.add(item["metadata"]["uid"])
                self.ends[failed["reason"] if failed else "Succeeded"] += 1

    def _meddle(self) -> None:
        """Do now and then what people do to their jobs and machines to pods."""
        jobs, pods = self.api.kinds(POSTTRAINJOBS.kind), self.site.world.unfinished
        if not jobs:
            return
        job = self.rng.choice(jobs)
        match self.rng.randint(0, 40):
            case 0:
                self.api.delete(POSTTRAINJOBS, job["metadata"]["name"], NAMESPACE)
            case 1:
                self._suspend(job, True)
            case 2 | 3 | 4:
                self._suspend(job, False)
            case 5 | 6 if pods:
                self.site.world.disrupt(self.rng.choice(pods))
            case 7 if jobsets := self.api.kinds(JOBSETS.kind):
                self.api.delete(JOBSETS, self.rng.choice(jobsets)["metadata"]["name"], NAMESPACE)

    def _suspend(self, job: Manifest, is_so: bool) -> None:
        if job["spec"]["runPolicy"].get("suspend", False) != is_so:
            self.api.patch(
                POSTTRAINJOBS, job["metadata"]["name"], NAMESPACE, {"spec": {"runPolicy": {"suspend": is_so}}}
            )

    def _fault(self) -> None:
        name = self.rng.choice(list(FAULTS))
        self.faults[name] += 1
        FAULTS[name](self)

    def _mend(self) -> None:
        self.client.error, self.deaf = None, frozenset()

    def _left(self) -> dict[str, list[str]]:
        left: dict[str, list[str]] = {}
        for kind, _, name in self.api.objects:
            if kind != NODES.kind:
                left.setdefault(kind, []).append(name)
        pools = [pool.name for pool in self.site.model.ours()]
        return {**left, "node pools": pools} if pools else left

    def _tidy(self) -> None:
        """Forget in the pretended cluster what nobody asks for any more, and measure."""
        changes = self.api.changes
        delivered = min(self.operator.delivered.values())
        del changes[:delivered]
        self.operator.delivered = {kind: number - delivered for kind, number in self.operator.delivered.items()}
        now, model = self.api.now.timestamp(), self.site.model
        model.operations = [each for each in model.operations if not each.is_done or each.due > now - 3600]
        model.made.clear()
        there = {item["metadata"]["name"] for item in self.api.kinds(POSTTRAINJOBS.kind)}
        self.site.world.files = {
            uri: data for uri, data in self.site.world.files.items() if uri.split("/")[-2] in there
        }
        gc.collect()
        self.memory_mb.append(psutil.Process().memory_info().rss / 2**20)


def _fail(code: int, reason: str, share: float) -> Callable[[Day], None]:
    def begin(day: Day) -> None:
        kind = Unreachable if code == 0 else ApiError
        day.client.error, day.client.share = kind(code, reason, "a fault of the simulation"), share

    return begin


def _lose_watches(day: Day) -> None:
    """The API server restarts, its history is gone: all watches list anew."""
    for resource in WATCHED:
        day.operator.list_anew(resource)


def _deafen(day: Day) -> None:
    day.deaf = frozenset(day.rng.sample(WATCHED, day.rng.randint(1, 2)))


FAULTS: dict[str, Callable[[Day], None]] = {
    "API server away": _fail(0, "Unreachable", 1.0),
    "API server restarted": _lose_watches,
    "429": _fail(429, "TooManyRequests", 0.3),
    "500": _fail(500, "InternalError", 0.3),
    "slow watches": _deafen,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    day = Day(options.hours, options.jobs, random.Random(options.seed))
    began = time.process_time()
    day.run()
    cpu_s = time.process_time() - began
    print(f"{day.made} jobs in {options.hours:g} simulated hours, {cpu_s:.0f} CPU-s with the pretended cluster")
    print(f"ends: {dict(day.ends)}; faults: {dict(day.faults)}")
    print(f"{day.looks / day.made:.1f} reconciles and {day.client.calls.total() / day.made:.1f} API calls per job")
    remains = day.remains()
    print(f"memory: {day.memory_mb[-1]:.0f} MB, growth {day.growth:+.1%}; remembered of jobs: {remains or 'nothing'}")
    if remains:
        raise SystemExit(f"the operator remembers jobs that are gone: {remains}")
    if options.hours >= 12 and day.growth > GROWTH:
        raise SystemExit(f"memory grew by {day.growth:.1%}, more than {GROWTH:.0%}")


if __name__ == "__main__":
    main()
