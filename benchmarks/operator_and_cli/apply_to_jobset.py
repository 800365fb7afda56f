"""How long from a PostTrainJob's creation until its JobSet is there: embedded cluster, one job at a time.

Jobs are created suspended, so no pod competes for the processor. Prints median and worst in milliseconds, and what
the idle operator takes: memory, and processor over ten seconds.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.jobs import manifest

from ptkube.client import Kube
from ptkube.resources import JOBSETS, POSTTRAINJOBS, Manifest
from ptlocal import cluster

JOBS = 30
IDLE_S = 10.0


def job(name: str, out: Path) -> Manifest:
    # No node here fits: pods stay Pending.
    return manifest(name, data=f"file://{out}/train.jsonl", output=f"file://{out}/runs", accelerator={"type": "v6e-16"})


def seconds_to_jobset(kube: Kube, job: Manifest) -> float:
    """Create a job, wait for its JobSet, delete the job: the next one would wait in line for its chips."""
    name = job["metadata"]["name"]
    before = kube.list(JOBSETS, "default").resource_version
    start = time.perf_counter()
    kube.create(POSTTRAINJOBS, job)
    for event, jobset in kube.watch(JOBSETS, "default", resource_version=before, timeout_s=30):
        if event == "ADDED" and jobset["metadata"]["labels"].get("posttrain.dev/job", name) == name:
            seconds = time.perf_counter() - start
            kube.delete(POSTTRAINJOBS, name, "default")
            return seconds
    raise TimeoutError(f"no JobSet for {name} within 30 s")


def operator_process(supervisor: int) -> psutil.Process:
    children = psutil.Process(supervisor).children(recursive=True)
    return next(child for child in children if "ptoperator" in child.cmdline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--idle-seconds", type=float, default=IDLE_S)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "cluster"
        info = cluster.up(data)
        try:
            kube = Kube.load(str(info.kubeconfig))
            seconds = sorted(seconds_to_jobset(kube, job(f"bench-{i}", Path(directory))) for i in range(options.jobs))
            time.sleep(5)
            process = operator_process(info.pid)
            before = sum(process.cpu_times()[:2])
            time.sleep(options.idle_seconds)
            busy = sum(process.cpu_times()[:2]) - before
            memory = process.memory_info().rss / 2**20
        finally:
            cluster.reset(data)
    print(f"create to JobSet: median {statistics.median(seconds) * 1000:.0f} ms, worst {seconds[-1] * 1000:.0f} ms")
    print(f"idle operator: {memory:.0f} MiB, {busy:.2f} CPU-seconds in {options.idle_seconds:g} s")


if __name__ == "__main__":
    main()
