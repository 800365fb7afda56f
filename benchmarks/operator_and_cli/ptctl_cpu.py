"""CPU-seconds of two ptctl commands: `--help`, and `workload list` of 1,000 jobs (embedded API server).

XPK 1.16 takes 1.28 CPU-seconds for `--help` (measured on such a machine; it has no wheel that installs beside us).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.jobs import manifest

from ptkube.client import Kube
from ptkube.resources import POSTTRAINJOBS
from ptlocal import cluster

XPK_HELP_S = 1.28


def cpu_seconds(arguments: list[str], env: dict[str, str]) -> float:
    """User and system time of one call."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "ptctl", *arguments], env=env, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def median(runs: int, arguments: list[str], env: dict[str, str]) -> float:
    return statistics.median(cpu_seconds(arguments, env) for _ in range(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    jobs, runs = vars(parser.parse_args()).values()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "cluster"
        info = cluster.up(data, without=["operator"])
        env = {**os.environ, "KUBECONFIG": str(info.kubeconfig)}
        try:
            kube = Kube.load(str(info.kubeconfig))
            for i in range(jobs):
                kube.create(
                    POSTTRAINJOBS, manifest(f"job-{i:04d}", data="file:///data/train.jsonl", output="file:///runs")
                )
            listed = median(runs, ["workload", "list"], env)
        finally:
            cluster.reset(data)
        helped = median(runs, ["--help"], env)
    print(f"ptctl --help: {helped:.2f} CPU-s (bound 0.15); XPK {XPK_HELP_S}, {XPK_HELP_S / helped:.0f} x")
    print(f"ptctl workload list, {jobs} jobs: {listed:.2f} CPU-s (bound 0.7)")


if __name__ == "__main__":
    main()
