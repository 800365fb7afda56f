"""A thousand PostTrainJobs at once: embedded cluster, pretended GKE, one operator.

Each job wants a node pool of spot VMs of its own, runs a pod for some seconds, gives the pool back and succeeds. Prints
how long a look takes (of the processor, and p50 and p99 by the clock), the operator's memory, the Kubernetes API calls
of its own code per job and per change of a phase, and the calls in the minute after it is started anew with all jobs
there.

    python benchmarks/operator_and_cli/thousand_jobs.py [--jobs 1000] [--most-calls 22]
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import psutil
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.jobs import manifest  # noqa: E402
from tests.builders.gke.model import GkeModel  # noqa: E402
from tests.builders.gke.nodes import GkeNodes  # noqa: E402
from tests.builders.gke.server import CLUSTER, LOCATION, PROJECT, GkeServer  # noqa: E402

from ptkube.client import ApiError, Kube  # noqa: E402
from ptkube.resources import POSTTRAINJOBS, Manifest  # noqa: E402
from ptlocal import cluster  # noqa: E402

LONGEST_S = 2400.0


class Operator:
    """The process that is measured. program: what Python runs."""

    def __init__(
        self, kubeconfig: Path, folder: Path, server: GkeServer, program: Sequence[str] = ("-m", "ptoperator")
    ) -> None:
        self._program = program
        self._env = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "POSTTRAIN_GKE_PROJECT": PROJECT,
            "POSTTRAIN_GKE_LOCATION": LOCATION,
            "POSTTRAIN_GKE_CLUSTER": CLUSTER,
            "POSTTRAIN_GKE_ENDPOINT": server.endpoint,
            "POSTTRAIN_POOL_IDLE_SECONDS": "0",
            "POSTTRAIN_SILENT_START_SECONDS": "2",
            "POSTTRAIN_SHARED_FILESYSTEM": "true",
        }
        self._log = (folder / "operator.log").open("ab")
        self.peak_mb = 0.0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def start(self) -> None:
        """Start the process and wait until it answers."""
        command = [sys.executable, *self._program, "-n", "default", "--port", str(self._port)]
        self._process = subprocess.Popen(command, env=self._env, stdout=self._log, stderr=self._log)
        self._watched = psutil.Process(self._process.pid)
        limit = time.monotonic() + 120
        while True:
            try:
                self.metrics()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise
                time.sleep(0.2)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def look(self) -> None:
        self.peak_mb = max(self.peak_mb, self.memory_mb())

    def memory_mb(self) -> float:
        """Raise ChildProcessError if it has ended by itself."""
        if self._process.poll() is not None:
            raise ChildProcessError(f"the operator has ended with {self._process.returncode}: see {self._log.name}")
        return float(self._watched.memory_info().rss / 2**20)

    def cpu_s(self) -> float:
        return float(sum(self._watched.cpu_times()[:2]))

    def metrics(self) -> dict[str, Metric]:
        with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            return {each.name: each for each in text_string_to_metric_families(answer.read().decode())}


def job(name: str, out: Path) -> Manifest:
    return manifest(
        name,
        data=f"file://{out}/train.jsonl",
        output=f"file://{out}/runs/{name}",
        accelerator={"type": "v6e-4"},
        capacity=[{"type": "spot", "zones": ["us-east5-b"]}],
        preflight="Skip",  # the operator is measured, not a thousand compilers
    )


class Phases:
    """Counts changes of phases from the watch, as any other client sees them."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.now: dict[str, str] = {}
        self.changes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        version = self._kube.list(POSTTRAINJOBS, "default").resource_version
        while True:
            try:
                for _, item in self._kube.watch(POSTTRAINJOBS, "default", resource_version=version):
                    version = item["metadata"]["resourceVersion"]
                    self._note(item["metadata"]["name"], (item.get("status") or {}).get("phase"))
            except ApiError:
                return

    def _note(self, name: str, phase: str | None) -> None:
        if phase and self.now.get(name) != phase:
            self.now[name] = phase
            self.changes += 1


def calls(metrics: dict[str, Metric]) -> Counter[str]:
    """By verb and resource."""
    counts: Counter[str] = Counter()
    for sample in metrics["posttrain_api_calls"].samples:
        if sample.name.endswith("_total"):
            counts[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
    return counts


def quantile(metrics: dict[str, Metric], share: float) -> str:
    """The bucket that holds this share of the looks: `<= 0.25 s`."""
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for sample in metrics["posttrain_reconcile_seconds"].samples
        if sample.name.endswith("_bucket")
    ]
    total = buckets[-1][1]
    return f"<= {next(edge for edge, count in buckets if count >= share * total):g} s"


def run(count: int, kube: Kube, operator: Operator, phases: Phases, model: GkeModel, out: Path) -> float:
    """All jobs, made as fast as the API server takes them; seconds until the last has ended and no pool is left."""
    began = time.monotonic()
    for index in range(count):
        kube.create(POSTTRAINJOBS, job(f"job-{index:04d}", out))
    while time.monotonic() - began < LONGEST_S:
        time.sleep(1.0)
        operator.look()
        if Counter(phases.now.values())["Succeeded"] == count and not model.ours():
            return time.monotonic() - began
    raise TimeoutError(f"after {LONGEST_S:.0f} s: {Counter(phases.now.values())}, {len(model.ours())} pools left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument(
        "--restart-seconds", type=float, default=60.0, help="how long the restarted operator is watched"
    )
    parser.add_argument("--most-calls", type=float, help="fail if a job takes more API calls than this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        info = cluster.up(out / "cluster", say=lambda _: None, without=["operator"])
        kube = Kube.load(str(info.kubeconfig))
        try:
            with GkeNodes(kube, "default", pod_seconds=10.0, poll_s=2.0) as nodes:
                model = GkeModel(time.monotonic, seconds=5.0, on_nodes=nodes.on_nodes)
                with GkeServer(model) as server:
                    report(options, kube, Operator(info.kubeconfig, out, server), model, out)
        finally:
            cluster.down(out / "cluster", say=lambda _: None, now=True)


def report(options: argparse.Namespace, kube: Kube, operator: Operator, model: GkeModel, out: Path) -> None:
    count = options.jobs
    phases = Phases(kube)
    operator.start()
    try:
        seconds = run(count, kube, operator, phases, model, out)
    except TimeoutError:
        operator.stop()
        raise
    metrics = operator.metrics()
    made = calls(metrics)
    looks = next(sample.value for sample in metrics["posttrain_reconciles"].samples if sample.name.endswith("_total"))
    print(f"{count} jobs in {seconds:.0f} s, {operator.cpu_s():.0f} CPU-s of the operator")
    cpu_s = next(
        each.value for each in metrics["posttrain_reconcile_cpu_seconds"].samples if each.name.endswith("_total")
    )
    took = f"p50 {quantile(metrics, 0.5)}, p99 {quantile(metrics, 0.99)}"
    print(f"a look: {1000 * cpu_s / looks:.1f} ms of processor, {took}; {looks / count:.1f} looks per job")
    print(f"memory: {operator.peak_mb:.0f} MB at most")
    print(f"API calls: {made.total() / count:.1f} per job, {made.total() / phases.changes:.1f} per change of phase")
    print(", ".join(f"{name} {number / count:.1f}" for name, number in made.most_common()))
    operator.stop()
    operator.start()
    time.sleep(options.restart_seconds)
    again = calls(operator.metrics())
    print(f"in the {options.restart_seconds:g} s after a restart: {again.total() / count:.1f} calls per job")
    operator.stop()
    if options.most_calls and made.total() > options.most_calls * count:
        raise SystemExit(f"{made.total() / count:.1f} API calls per job, more than {options.most_calls:g}")
    if model.doubled:
        raise SystemExit(f"two pools for one slice: {model.doubled}")


if __name__ == "__main__":
    main()
