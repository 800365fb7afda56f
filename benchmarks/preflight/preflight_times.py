"""How long a verdict takes with the TPU compiler, and how much host memory: the cases that have a bound.

    python benchmarks/preflight/preflight_times.py              # all, one after the other
    python benchmarks/preflight/preflight_times.py 8b-v5e-16    # one

Llama 3.1 shapes, all weights trained, 4,096 tokens per chip, from the start of the command to its end. Memory is that
of the command and its children together, ten times a second. Needs libtpu (`pip install -e '.[tpu-compiler]'`) and a
machine that does nothing else. Ends with 1 where a bound is missed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

GIB = 2**30
MEMORY_GB = 3.0
ALL = "all"


class Case(NamedTuple):
    """A command, and the seconds that it may take. row: tokens of a row; one for each device and pass."""

    model: str
    accelerator: str
    rows: int
    row: int
    depth: str
    seconds: float
    fits: bool = True


CASES = {
    "8b-v6e-16": Case("llama3.1-8b", "v6e-16", 16, 4096, "fast", 20),
    "8b-v5p-16": Case("llama3.1-8b", "v5p-16", 8, 4096, "fast", 20),
    "8b-v5e-16": Case("llama3.1-8b", "v5e-16", 16, 4096, "fast", 20),
    "70b-v5p-128": Case("llama3.1-70b", "v5p-128", 64, 4096, "fast", 40),
    "70b-tpu7x-128": Case("llama3.1-70b", "tpu7x-128", 128, 2048, "fast", 40),
    "hopeless": Case("llama3.1-70b", "v5e-16", 16, 4096, "auto", 15, fits=False),
    "8b-v5p-16-full": Case("llama3.1-8b", "v5p-16", 8, 4096, "full", 60),
    "70b-v5p-128-full": Case("llama3.1-70b", "v5p-128", 64, 4096, "full", 150),
}


def job(case: Case) -> dict[str, object]:
    """As a manifest; JSON is YAML."""
    return {
        "apiVersion": "posttrain.dev/v1alpha1",
        "kind": "PostTrainJob",
        "metadata": {"name": "timed"},
        "spec": {
            "model": {"uri": f"random://{case.model}"},
            "algorithm": {"sft": {}},
            "data": {"train": {"uri": "file:///data.jsonl"}},
            "training": {"batchSize": case.rows, "sequenceLength": case.row},
            "accelerator": {"type": case.accelerator},
            "output": {"uri": "file:///runs"},
        },
    }


def measure(case: Case) -> tuple[str, bool]:
    """A line of the table, and whether everything is within its bounds."""
    with tempfile.TemporaryDirectory(prefix="preflight-times-") as folder:
        file, answer = Path(folder) / "job.yaml", Path(folder) / "answer.json"
        file.write_text(json.dumps(job(case)))
        command = [sys.executable, "-m", "pttrainer", "preflight", str(file), "--depth", case.depth]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        child = subprocess.Popen([*command, "--write", str(answer)], stdout=subprocess.DEVNULL)
        peak = 0
        while child.poll() is None:
            peak = max(peak, sum(map(_resident, _family(child.pid))))
            time.sleep(0.1)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        verdict = json.loads(answer.read_text())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    is_right = verdict["fits"] is case.fits and verdict["stage"] != "formula"
    is_good = is_right and seconds <= case.seconds and peak / 1e9 <= MEMORY_GB
    fits = (
        f"{'fits' if verdict['fits'] else 'does not fit'}, {verdict['stage']}, {verdict['peak'] / GIB:.2f} GiB a device"
    )
    return f"| {seconds:.1f} | {case.seconds:.0f} | {cpu:.0f} | {peak / 1e9:.2f} | {fits} |", is_good


def _family(pid: int) -> list[int]:
    """The process and all below it that are there now."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for one in below for each in _family(int(one)))]


def _resident(pid: int) -> int:
    """Bytes; of pages that processes share, each counts its own."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", choices=(ALL, *CASES), default=ALL, help="one or more; all of them if none")
    names = parser.parse_args().case
    print("| case | seconds | bound | CPU-seconds | host memory, GB | verdict |\n| --- | --- | --- | --- | --- | --- |")
    are_good = []
    for name in CASES if ALL in names else names:
        line, is_good = measure(CASES[name])
        are_good.append(is_good)
        print(f"| {name}{'' if is_good else ' MISSED'} {line}", flush=True)
    return 0 if all(are_good) else 1


if __name__ == "__main__":
    sys.exit(main())
