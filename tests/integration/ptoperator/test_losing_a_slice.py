"""A job on two slices, with real trainers and a sampler in its pods: one slice is lost, comes back and joins."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.builders.cluster.manifests import eventually
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.trainer import quick, runs

from ptapi import run_directory
from ptapi.run_directory import Generation
from ptkube.resources import NODES, PODS
from pttrainer.runtime.distributed import processes

BATCH, UPDATES, STEPS = 8, 2, 16
TOLERANCE = 1e-4
"""As of other changes of the mesh (`tests/integration/pttrainer/test_layouts.py`)."""
PACED = """
import os, time

def reward(prompt, completion, row):
    calls = os.open({calls!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(calls, b".")
    os.close(calls)
    while os.path.getsize({calls!r}) > int(open({limit!r}).read()):
        time.sleep(0.02)
    return completion.count("a") / max(len(completion), 1)
"""
HASTY = """
import os

os.environ.update(POSTTRAIN_LEASE_SECONDS="10", POSTTRAIN_SLICE_PATIENCE_SECONDS="15")
"""
"""Runs before a pod's Python: a job may not set these variables, and half an hour would pass."""


class Pace:
    """How many samples may be scored; the run waits in the middle of a step until more may."""

    def __init__(self, home: Path) -> None:
        self.calls, self.limit = home / "calls", home / "limit"
        self.calls.touch()
        self.allow(2 * BATCH)

    def allow(self, samples: int) -> None:
        part = self.limit.with_suffix(".new")
        part.write_text(str(samples))
        part.rename(self.limit)

    def allow_more(self, samples: int) -> None:
        self.allow(self.calls.stat().st_size + samples)

    @property
    def is_spent(self) -> bool:
        return self.calls.stat().st_size > int(self.limit.read_text())


def spec(home: Path, pace: Pace) -> dict[str, Any]:
    source = PACED.format(calls=str(pace.calls), limit=str(pace.limit))
    return {
        "algorithm": {"grpo": {"groupSize": 2, "updatesPerBatch": UPDATES, "beta": 0.05}},
        "data": {"train": {"uri": f"file://{runs.write_rows(home / 'train.jsonl', runs.NUMBERS)}"}},
        "rewards": runs.own_reward(home, source, timeout_s=600),
        "training": {"steps": STEPS, "batchSize": BATCH, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2}},
        "rollout": {"maxNewTokens": 8, "placement": "separate", "separate": {"replicas": 1}},
        "checkpoint": {"everySteps": 1},
        "export": {"format": "none"},
        "tensorboard": {"enabled": False},
        "preflight": "Skip",
    }


def completions(run: Path) -> list[list[str]]:
    """The samples of every batch."""
    files = [run / run_directory.SAMPLES / f"step-{step:08}.jsonl" for step in range(1, STEPS + 1, UPDATES)]
    return [[json.loads(line)["completion"] for line in file.read_text().splitlines()] for file in files]


def supervisor_of(index: int, home: Path) -> psutil.Process:
    """The process of a slice's container. home: the first place where it looks for Python's modules."""
    marks = {"PYTHONPATH": str(home), "POSTTRAIN_SLICE_INDEX": str(index)}
    for process in psutil.process_iter():
        try:
            env = process.environ()
        except (psutil.Error, OSError):
            continue
        if marks.items() <= env.items() and processes.GENERATION not in env:
            return process
    raise AssertionError(f"slice {index} has no process")


def close_node(jobs: Any, *, closed: bool) -> None:
    """No new pod gets the node, or pods get it again; the scheduler knows it by the end."""
    jobs.kube.patch(NODES, "local", None, {"spec": {"unschedulable": closed}})
    number = 0

    def placed() -> bool:
        """Whether a new pod gets the node."""
        nonlocal number
        number += 1
        name = f"probe-{closed}-{number}".lower()
        container = {"name": "main", "image": "none", "command": ["true"]}
        spec = {"restartPolicy": "Never", "containers": [container]}
        jobs.kube.create(PODS, {"metadata": {"name": name, "namespace": jobs.namespace}, "spec": spec})

        def answer() -> str:
            pod = jobs.kube.get(PODS, name, jobs.namespace)
            conditions = (pod.get("status") or {}).get("conditions") or []
            refused = any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
            return "placed" if pod["spec"].get("nodeName") else "refused" if refused else ""

        is_placed = eventually(answer) == "placed"
        jobs.kube.delete(PODS, name, jobs.namespace)
        return bool(is_placed)

    jobs.wait(lambda: placed() is not closed)


def test_a_job_goes_on_without_a_slice_and_with_it_when_it_is_back(
    operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    pace = Pace(tmp_path)
    wanted = spec(tmp_path, pace)
    (tmp_path / "sitecustomize.py").write_text(HASTY)
    env = {
        "PYTHONPATH": str(tmp_path),
        "JAX_COMPILATION_CACHE_DIR": runs.compiled(),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": quick.FLAGS,
    }
    run = jobs.runs / "two"

    def generation() -> Generation:
        file = run / run_directory.GENERATION
        return Generation.model_validate_json(file.read_text()) if file.exists() else Generation()

    def wait(is_so: Callable[[], Any]) -> None:
        """Meanwhile a run that is to let a slice join may end its step, after which it saves."""

        def looked() -> Any:
            if generation().stopping and pace.is_spent:
                pace.allow_more(BATCH)
            return is_so()

        jobs.wait(looked, shown=lambda: (generation(), jobs.status("two"), jobs.pods("two")))

    def trains_on(*slices: int) -> bool:
        at = generation()
        return at.slices == list(slices) and at.started and not at.stopping

    jobs.create(
        "two",
        accelerator={"type": "cpu-1", "slices": 2, "minSlices": 1},
        env=[{"name": name, "value": value} for name, value in env.items()],
        **wanted,
    )
    try:
        wait(lambda: trains_on(0, 1) and pace.is_spent)
        close_node(jobs, closed=True)
        supervisor_of(0, tmp_path).kill()  # its host is gone: the leader, and perhaps the keeper
        wait(lambda: trains_on(1))
        pace.allow_more(2 * BATCH)
        wait(lambda: trains_on(1) and pace.is_spent)
        wait(lambda: jobs.status("two").slices.training == 1 and str(jobs.status("two").phase) == "Running")
    finally:
        close_node(jobs, closed=False)
    wait(lambda: trains_on(0, 1))
    pace.allow(10**6)
    status = jobs.wait_phase("two", "Succeeded")
    assert status.restarts.keys() == {"HostError", "Resized"}
    assert status.restarts == status.slices.restarts
    assert (status.slices.training, status.slices.total) == (2, 2)
    alone = {"algorithm": {"sft": None, **wanted["algorithm"]}, "rollout": {"maxNewTokens": 8}}
    runs.run(runs.job(tmp_path, "undisturbed", wanted | alone))
    whole = jobs.runs / "undisturbed"
    assert [line["step"] for line in runs.lines(run)] == list(range(1, STEPS + 1))
    assert completions(run) == completions(whole)
    assert runs.losses(run) == pytest.approx(runs.losses(whole), rel=TOLERANCE, abs=1e-6)
