"""`ptctl train` on two machines with one run directory in a bucket, their clocks ten minutes apart."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.builders.servers import bucket
from tests.builders.servers.bucket import Buckets
from tests.builders.trainer import runs

from ptapi import run_directory
from ptapi.run_directory import Lease

STEPS = 150
LIMIT_S = 3.0
MACHINE = """\
import datetime, os, socket
socket.gethostname = lambda: os.environ["LAPTOP"]
class Ahead(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=float(os.environ["AHEAD_S"]))
datetime.datetime = Ahead
"""
"""What every Python of a machine begins with: its own name, and its own clock."""


class Laptop:
    """A machine: its name, its clock, its home. `ptctl` and what it started die together, as in a power cut."""

    def __init__(self, home: Path, name: str, ahead_s: float, buckets: Buckets) -> None:
        (home / name).mkdir()
        (home / name / "sitecustomize.py").write_text(MACHINE)
        self.name = name
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))},
            **buckets.environment(),
            "HOME": str(home / name),
            "PYTHONPATH": os.pathsep.join([str(home / name), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "LAPTOP": name,
            "AHEAD_S": str(ahead_s),
            "POSTTRAIN_LEASE_SECONDS": str(LIMIT_S),
            "JAX_COMPILATION_CACHE_DIR": runs.compiled(),
        }
        self._output = home / f"{name}.log"

    def train(self, job: Path, *, is_paced: bool = False) -> subprocess.Popen[str]:
        """is_paced: it goes on for some fifty steps, and then only as its lines are read."""
        command = [sys.executable, "-m", "ptctl", "train", "-f", str(job)]
        with self._output.open("w") as output:
            lines = subprocess.PIPE if is_paced else output
            process = subprocess.Popen(
                command, env=self._env, stdout=lines, stderr=output, text=True, start_new_session=True
            )
        if is_paced:
            runs.paced(process)
        return process

    def printed(self) -> str:
        return self._output.read_text()


def steps(buckets: Buckets) -> list[int]:
    """The steps of which the run has a line."""
    try:
        content = buckets.content("out", f"runs/sums/{run_directory.METRICS}")
    except KeyError:
        return []
    return [row["step"] for row in map(json.loads, content.splitlines()) if run_directory.LOSS in row]


def reached(buckets: Buckets, step: int, process: subprocess.Popen[str]) -> None:
    while max(steps(buckets), default=0) < step:
        assert process.poll() is None, "it ended too early"
        time.sleep(0.05)


def holder(buckets: Buckets) -> Lease:
    return Lease.model_validate_json(buckets.content("out", f"runs/sums/{run_directory.LEASE}"))


def test_one_trains_the_other_is_refused_takes_over_after_a_power_cut_and_then_refuses_the_first(
    tmp_path: Path,
) -> None:
    runs.write_rows(tmp_path / "train.jsonl", runs.SUMS)
    training = {"steps": STEPS, "batchSize": 4, "sequenceLength": 64}
    job = runs.job(tmp_path, "sums", training=training, checkpoint={"everySteps": 10}, output={"uri": "gs://out/runs"})
    with bucket.serve() as buckets:
        laptops = [Laptop(tmp_path, "anna", 0.0, buckets), Laptop(tmp_path, "bert", 600.0, buckets)]
        both = {each.name: each.train(job) for each in laptops}
        while all(each.poll() is None for each in both.values()):
            time.sleep(0.05)
        refused, first = sorted(laptops, key=lambda each: both[each.name].poll() is None)
        assert f"ptctl train on {first.name}, pid " in refused.printed(), refused.printed()
        assert "writes there; accepted: one process at a time" in refused.printed()
        assert "Traceback" not in refused.printed()
        reached(buckets, 25, both[first.name])
        os.killpg(both[first.name].pid, signal.SIGKILL)
        both[first.name].wait()
        second = refused.train(job, is_paced=True)
        while holder(buckets).host != refused.name:
            assert second.poll() is None, refused.printed()
            time.sleep(0.05)
        again = first.train(job)
        assert again.wait(300) != 0
        assert f"ptctl train on {refused.name}, pid " in first.printed(), first.printed()
        assert second.poll() is None, refused.printed()
        second.communicate(timeout=300)
        assert second.returncode == 0, refused.printed()
        assert f"waiting for ptctl train on {first.name}, pid " in refused.printed()
        assert "resuming after step" in refused.printed()
        assert steps(buckets) == list(range(1, STEPS + 1))
        assert holder(buckets).released
