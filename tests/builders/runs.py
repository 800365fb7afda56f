"""Real runs of the trainer in processes of their own: the job's file, one process or several, what they left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from ptapi import rundir


def write_job(home: Path, name: str, spec: dict[str, Any]) -> Path:
    """A job's file in `home`; its run directory is `home/runs/<name>`."""
    document = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": name}}
    path = home / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**document, "spec": {"output": {"uri": f"file://{home}/runs"}, **spec}}))
    return path


QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Compiles without spending long on machine code that runs for seconds."""


def start(home: Path, path: Path, processes: int = 1, flags: str = "") -> list[subprocess.Popen[str]]:
    """The trainer's processes; compiled steps are kept in `home`. flags: XLA's."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))} | {"XLA_FLAGS": flags}
    clean["JAX_COMPILATION_CACHE_DIR"] = str(home / "xla")
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            clean["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{free.getsockname()[1]}"
        clean["JAX_NUM_PROCESSES"] = str(processes)
    command = [sys.executable, "-m", "pttrainer", "run", str(path)]
    return [
        subprocess.Popen(
            command,
            env=clean | ({"JAX_PROCESS_ID": str(rank)} if processes > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


def run(home: Path, path: Path, processes: int = 1, flags: str = "") -> str:
    """Runs to the end; what the leader said on stderr."""
    running = start(home, path, processes, flags)
    results = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * processes, results
    return results[0][1]


def metrics(home: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (home / "runs" / name / rundir.METRICS).read_text().splitlines()]


def losses(home: Path, name: str) -> list[float]:
    """The loss of every step."""
    return [line["loss"] for line in metrics(home, name) if "loss" in line]
