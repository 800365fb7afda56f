"""A process that holds the lease of a run directory and writes there, as a trainer does, and knows no more than that.

`python -m tests.builders.trainer.writer URI [--host NAME] [--uid UID]` says `taken`, appends a line with its name to
`lines` every few milliseconds, and releases at SIGTERM. Exit codes are a trainer's. host: of a machine of its own, as
far as others can tell.
"""

import argparse
import os
import select
import socket
import sys
import time
from typing import TextIO

from tests.builders.trainer import forked
from tests.builders.trainer.forked import Process

from ptapi.load import parse_job
from ptapi.run_directory import LEASE, Lease
from ptapi.spec import PostTrainJob
from pttrainer.runtime.io import storage
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import StopRequest
from pttrainer.training.run_directory import lease

LIMIT_S = 1.5
LINES = "lines"
_IMPORTS = ("pttrainer.training.run_directory.lease", "google.cloud.storage")


def job(output: str = "file:///tmp/runs", uid: str | None = None) -> PostTrainJob:
    """A job that nobody runs."""
    metadata = {"name": "sums", "namespace": "default", **({} if uid is None else {"uid": uid})}
    spec = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": "file:///tmp/rows.jsonl"}},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": output},
    }
    return parse_job(
        {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": metadata, "spec": spec}
    )


def start(uri: str, *words: str, limit_s: float = LIMIT_S) -> Process:
    """The process."""
    env = {**os.environ, "POSTTRAIN_LEASE_SECONDS": str(limit_s)}
    return forked.start(_IMPORTS, ("tests.builders.trainer.writer", uri, *words), env)


def taken(process: Process) -> float:
    """Waits until it holds the lease; the seconds that this took it."""
    assert process.stdout is not None
    word, _, seconds = first_line(process.stdout).partition(" ")
    if word != "taken":
        raise AssertionError(process.communicate(timeout=120)[1])
    return float(seconds)


def first_line(stream: TextIO) -> str:
    """Waits two minutes for it."""
    assert select.select([stream], [], [], 120)[0], "the process is silent"
    return stream.readline()


def end(process: Process) -> tuple[int, str]:
    """Waits; the exit code, and what was said on stderr."""
    _, errors = process.communicate(timeout=120)
    assert process.returncode is not None
    return process.returncode, errors


def lines(place: Place) -> list[str]:
    """Who wrote each line."""
    return (place.read(LINES) or b"").decode().split()


def held(place: Place) -> Lease:
    """What the lease says."""
    return Lease.model_validate_json(place.read(LEASE) or b"")


def main() -> int:
    """Writes until it is asked to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("uri")
    parser.add_argument("--host")
    parser.add_argument("--uid")
    options = parser.parse_args()
    if options.host:
        socket.gethostname = lambda: str(options.host)
    stop = StopRequest()
    stop.listen()
    began = time.monotonic()
    place = storage.place(options.uri)
    try:
        writer = lease.acquire(place, job(uid=options.uid), lambda: stop.signal)
        print(f"taken {time.monotonic() - began:.3f}", flush=True)
        place.fence = writer.check
        place.write(LINES, place.read(LINES) or b"")  # as the metrics of a run that goes on
        while stop.signal is None:
            place.append(LINES, f"{options.host or 'here'}\n".encode())
            time.sleep(0.02)
    except Exception as error:
        code = termination.exit_code(error)
        termination.show(error, code)
        return int(code)
    writer.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
