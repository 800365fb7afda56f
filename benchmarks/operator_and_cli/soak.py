"""The operator for hours, in stretches that continue each other, while jobs come and go and things go wrong.

Embedded cluster, pretended GKE, one operator behind a proxy of the API server. Jobs run pods without a process behind
them; some are suspended, deleted or edited on the way, some pods fail. Every few seconds one fault of `FAULTS`. At the
end of a stretch no more jobs are made, faults stop, and everything must go away. Objects stay between stretches in
`--state`; each stretch adds a line to `--records`, and the program ends with what all of them say. With
`docs/results/soak.jsonl` stretches of any day and machine continue each other: faults are drawn by the number of the
stretch, and what it found is published with it. It fails if a job is stuck, if anything is left, if a job failed of a
deadline that was not over, or if memory grew by more than 5 % after a stretch's first third.

The clock that jumps is the operator's (`jumping_clock.py`); the API server's goes on. Left out: replicas of it.

    python benchmarks/operator_and_cli/soak.py --minutes 30 --state DIR [--jobs 20] [--records docs/results/soak.jsonl]
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jumping_clock import jump
from tests.builders.cluster.operator_process import WriteProxy
from tests.builders.gke.model import GkeModel, PoolRecord
from tests.builders.gke.nodes import GkeNodes
from tests.builders.gke.server import GkeServer
from thousand_jobs import Operator, calls, job

from ptapi.conditions import Reason
from ptkube import timestamps
from ptkube.client import ApiError, Kube
from ptkube.errors import NotFound
from ptkube.objects import true_condition
from ptkube.resources import CONFIGMAPS, JOBS, JOBSETS, NODES, PODS, POSTTRAINJOBS, Manifest, Resource
from ptlocal import cluster

FAULT_EVERY_S = 20.0
DRAIN_S = 600.0
GROWTH = 0.05
DEADLINE_S = 600
JUMPING = Path(__file__).with_name("jumping_clock.py")
JUMPS_S = (-7200, -600, -60, 60, 600, 7200)
TTL_S = 5
OURS = (POSTTRAINJOBS, JOBSETS, JOBS, PODS, CONFIGMAPS)


class FaultyProxy(WriteProxy):
    """Answers some requests itself while `errors` holds a class of answer."""

    errors: Callable[[], web.HTTPException] | None = None

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        error = self.errors
        if error is not None and random.random() < 0.3:
            raise error()
        try:
            return await super()._pass_on(request)
        except aiohttp.ClientError as lost:  # the API server was killed
            raise web.HTTPBadGateway from lost


@dataclass
class Stretch:
    """One run of the operator."""

    kube: Kube
    folder: Path
    data_dir: Path
    proxy: FaultyProxy
    operator: Operator
    model: GkeModel
    size: int
    number: int
    rng: random.Random
    clock: Path
    made: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    """By job that ended: Succeeded, or why it failed."""
    cut_short: set[str] = field(default_factory=set)
    """Jobs that failed of their deadline before it was over."""

    def run(self, seconds: float) -> dict[str, Any]:
        """Let jobs come and go for so long, then let all of them end; return what was observed."""
        began, next_fault = time.monotonic(), FAULT_EVERY_S / 4
        while (age := time.monotonic() - began) < seconds:
            self._each_second()
            if age >= next_fault:
                self._fault()
                next_fault = age + FAULT_EVERY_S
            time.sleep(1.0)
        self._mend()
        left = self._drain()
        return {
            "stretch": self.number,
            "ended": timestamps.timestamp(),
            "minutes": round(seconds / 60, 2),
            "jobsAtOnce": self.size,
            "jobs": self.made,
            "faults": dict(self.faults),
            "ends": dict(Counter(self.ends.values())),
            "cutShort": sorted(self.cut_short),
            "memoryMb": self._memory(),
            "operatorCpuSeconds": round(self.operator.cpu_s(), 1),
            "callsPerJob": round(calls(self.operator.metrics()).total() / max(1, self.made), 1),
            "stuck": left.pop(POSTTRAINJOBS.plural, []),
            "left": left,
        }

    def _each_second(self) -> None:
        try:
            jobs = self.kube.list(POSTTRAINJOBS, "default").items
            for each in jobs:
                self._note_end(each)
            for _ in range(min(3, self.size - len(jobs))):
                self._make()
            if jobs:
                self._meddle(self.rng.choice(jobs)["metadata"]["name"])
        except ApiError:
            pass  # the API server is away: that is one of the faults
        self.memory.append(self.operator.memory_mb())

    def _note_end(self, item: Manifest) -> None:
        name, failed = item["metadata"]["name"], true_condition(item, "Failed")
        if failed is None and true_condition(item, "Complete") is None:
            return
        self.ends[name] = failed["reason"] if failed else "Succeeded"
        age_s = timestamps.seconds_since(item["metadata"]["creationTimestamp"], timestamps.utc_now()) or 0.0
        if self.ends[name] == Reason.DEADLINE_EXCEEDED and age_s < DEADLINE_S:
            self.cut_short.add(name)

    def _make(self) -> None:
        self.made += 1
        body = job(f"soak-{self.number}-{self.made:06d}", self.folder)
        body["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": TTL_S, "activeDeadlineSeconds": DEADLINE_S}
        self.kube.create(POSTTRAINJOBS, body)

    def _meddle(self, name: str) -> None:
        """Do now and then what people do to their jobs and machines to pods."""
        match self.rng.randint(0, 40):
            case 0:
                self.kube.delete(POSTTRAINJOBS, name, "default")
            case 1:
                self._patch(name, {"suspend": True})
            case 2 | 3 | 4:
                self._patch(name, {"suspend": False})
            case 5:
                self._patch(name, {"activeDeadlineSeconds": 2 * DEADLINE_S})
            case 6 | 7:
                for pod in self.kube.list(PODS, "default", labels=f"posttrain.dev/job={name}").items[:1]:
                    self.kube.delete(PODS, pod["metadata"]["name"], "default")
            case 8:
                self.kube.delete(JOBSETS, name, "default")

    def _patch(self, name: str, policy: dict[str, Any]) -> None:
        self.kube.patch(POSTTRAINJOBS, name, "default", {"spec": {"runPolicy": policy}})

    def _fault(self) -> None:
        """End the fault before, and begin another."""
        self._mend()
        name = self.rng.choice(list(FAULTS))
        self.faults[name] += 1
        FAULTS[name](self)

    def _mend(self) -> None:
        self.proxy.come_back()
        self.proxy.errors, self.proxy.late = None, ""
        jump(self.clock, 0)

    def _drain(self) -> dict[str, list[str]]:
        """Let everything end; return what does not."""
        end = time.monotonic() + DRAIN_S
        left = self._left()
        while left and time.monotonic() < end:
            for name in left.get(POSTTRAINJOBS.plural, []):
                try:
                    self._patch(name, {"suspend": False})
                except NotFound:
                    continue
            time.sleep(2.0)
            left = self._left()
        return left

    def _left(self) -> dict[str, list[str]]:
        left = {resource.plural: _names(self.kube, resource) for resource in OURS}
        left["nodes"] = [name for name in _names(self.kube, NODES) if name.startswith("gke-")]
        left["pools"] = sorted(pool.name for pool in self.model.ours())
        return {kind: names for kind, names in left.items() if names}

    def _memory(self) -> dict[str, float]:
        """Medians of the second and of the last third, and their growth."""
        third = max(1, len(self.memory) // 3)
        warm, last = statistics.median(self.memory[third : 2 * third]), statistics.median(self.memory[-third:])
        return {"warm": round(warm, 1), "last": round(last, 1), "growth": round(last / warm - 1, 4)}


def _names(kube: Kube, resource: Resource) -> list[str]:
    items = kube.list(resource, "default" if resource.namespaced else None).items
    return [item["metadata"]["name"] for item in items if item["metadata"]["name"] != "kube-root-ca.crt"]


def _restart_api_server(stretch: Stretch) -> None:
    """kill -9; its supervisor starts it again."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "ptlocal.apiserver" in words and str(stretch.data_dir) in words:
            process.kill()


def _throttle(stretch: Stretch) -> None:
    stretch.proxy.errors = lambda: web.HTTPTooManyRequests(headers={"Retry-After": "1"})


def _fail(stretch: Stretch) -> None:
    stretch.proxy.errors = web.HTTPInternalServerError


def _delay_pods(stretch: Stretch) -> None:
    stretch.proxy.late = "/pods"


def _delay_jobs(stretch: Stretch) -> None:
    stretch.proxy.late = "/posttrainjobs"


def _jump(stretch: Stretch) -> None:
    jump(stretch.clock, stretch.rng.choice(JUMPS_S))


FAULTS: dict[str, Callable[[Stretch], None]] = {
    "API server killed": _restart_api_server,
    "API server cut off": lambda stretch: stretch.proxy.go_down(),
    "429": _throttle,
    "500": _fail,
    "late pods": _delay_pods,
    "late jobs": _delay_jobs,
    "clock jumped": _jump,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="length of this stretch, without its end")
    parser.add_argument("--state", type=Path, required=True, help="folder of the cluster, kept between stretches")
    parser.add_argument("--jobs", type=int, default=20, help="jobs there at once")
    parser.add_argument("--records", type=Path, help="file of all stretches' figures; by default soak.jsonl in --state")
    options = parser.parse_args()
    options.state.mkdir(parents=True, exist_ok=True)
    records = options.records or options.state / "soak.jsonl"
    number = len(records.read_text().splitlines()) if records.exists() else 0
    data_dir = options.state.resolve() / "cluster"
    info = cluster.up(data_dir, say=lambda _: None, without=["operator"])
    try:
        record = _stretch(options, Kube.load(str(info.kubeconfig)), info.kubeconfig, data_dir, number)
    finally:
        cluster.down(data_dir, say=lambda _: None, now=True)
    with records.open("a") as file:
        file.write(json.dumps(record) + "\n")
    _report(records)


def _stretch(options: argparse.Namespace, kube: Kube, kubeconfig: Path, data_dir: Path, number: int) -> dict[str, Any]:
    model = GkeModel(time.monotonic, seconds=2.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        GkeNodes(kube, "default", pod_seconds=8.0, poll_s=1.0) as nodes,
        FaultyProxy(kubeconfig, Path(folder), lambda moment, what: True) as proxy,
        GkeServer(model) as server,
    ):
        model.on_nodes = _patiently(nodes.on_nodes)
        clock = Path(folder) / "clock"
        jump(clock, 0)
        operator = Operator(proxy.kubeconfig, options.state, server, [str(JUMPING), str(clock)])
        operator.start()
        rng = random.Random(number)
        try:
            return Stretch(kube, Path(folder), data_dir, proxy, operator, model, options.jobs, number, rng, clock).run(
                60 * options.minutes
            )
        finally:
            operator.stop()


def _patiently(on_nodes: Callable[[PoolRecord], None]) -> Callable[[PoolRecord], None]:
    """Let pretended nodes wait while the API server is away: a pool that they fail would stay for ever."""

    def tried(pool: PoolRecord) -> None:
        while True:
            try:
                on_nodes(pool)
                return
            except ApiError:
                time.sleep(0.5)

    return tried


def _report(records: Path) -> None:
    stretches = [json.loads(line) for line in records.read_text().splitlines()]
    for each in stretches:
        print(json.dumps(each))
    minutes, jobs = sum(each["minutes"] for each in stretches), sum(each["jobs"] for each in stretches)
    print(f"{len(stretches)} stretches, {minutes:.1f} minutes, {jobs} jobs")
    last = stretches[-1]
    if last["stuck"] or last["left"]:
        raise SystemExit(f"stuck: {last['stuck']}; left: {last['left']}")
    if last["cutShort"]:
        raise SystemExit(f"failed of a deadline that was not over: {last['cutShort']}")
    if last["minutes"] >= 10 and last["memoryMb"]["growth"] > GROWTH:
        raise SystemExit(f"memory grew by {last['memoryMb']['growth']:.1%}, more than {GROWTH:.0%}")


if __name__ == "__main__":
    main()
