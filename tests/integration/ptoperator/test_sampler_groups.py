"""A sampler of two hosts in its pods, with real processes: one is killed, and its Job makes both anew."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.trainer import quick, runs

from ptapi import run_directory
from ptkube.client import Kube
from ptkube.objects import container_statuses, label
from ptkube.resources import JOBS, JOBSETS, NODES, Manifest
from ptoperator.kube import labels

BATCH, STEPS = 8, 2
TPU = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice", "cloud.google.com/gke-tpu-topology": "2x2x2"}
ROOM = {"google.com/tpu": "8", "cpu": "1000", "memory": "4000G"}
HELD = """
import os, pathlib, time

def reward(prompt, completion, row):
    home = pathlib.Path({home!r})
    calls = os.open(home / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(calls, b".")
    gate = "first" if os.fstat(calls).st_size <= {batch} else "second"
    os.close(calls)
    (home / (gate + "-held")).touch()
    while not (home / gate).exists():
        time.sleep(0.02)
    return sum(completion.encode()) % 11 / 10
"""
"""Different for nearly every sample. The first batch waits at one gate, those after it at another."""


@pytest.fixture
def tpu_node(kube: Kube) -> Iterator[None]:
    """The node pretends to be a slice of v5p: its processes compute on CPUs."""
    before = kube.get(NODES, "local")["status"]["allocatable"]
    kube.patch(NODES, "local", None, {"metadata": {"labels": TPU}})
    kube.patch(NODES, "local", None, {"status": {"allocatable": ROOM}}, subresource="status")
    yield
    kube.patch(NODES, "local", None, {"metadata": {"labels": dict.fromkeys(TPU)}})
    kube.patch(NODES, "local", None, {"status": {"allocatable": dict.fromkeys(ROOM) | before}}, subresource="status")


def process_of(pod: Manifest, home: Path) -> psutil.Process:
    """The process of a sampler's pod. home: the directory of this test."""
    marks = {"HOME_OF_TEST": str(home), "JAX_PROCESS_ID": index(pod)}
    for process in psutil.process_iter():
        try:
            env = process.environ()
        except (psutil.Error, OSError):
            continue
        if marks.items() <= env.items():
            return process
    raise AssertionError(f"pod {pod['metadata']['name']} has no process")


def index(pod: Manifest) -> str:
    return label(pod, labels.COMPLETION_INDEX)


def exit_codes(pods: Iterable[Manifest]) -> list[int]:
    states = [each.get("state") or {} for pod in pods for each in container_statuses(pod)]
    return sorted(state["terminated"]["exitCode"] for state in states if "terminated" in state)


@pytest.mark.usefixtures("tpu_node")
def test_a_sampler_of_two_hosts_of_which_one_is_killed_comes_back_whole(
    operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    env = {
        "HOME_OF_TEST": str(tmp_path),
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_COMPILATION_CACHE_DIR": runs.compiled(),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": f"{quick.FLAGS} --xla_force_host_platform_device_count=4",
    }
    jobs.create(
        "group",
        algorithm={"grpo": {"groupSize": 2}},
        data={"train": {"uri": f"file://{runs.write_rows(tmp_path / 'train.jsonl', runs.NUMBERS)}"}},
        rewards=runs.own_reward(tmp_path, HELD.format(home=str(tmp_path), batch=BATCH), timeout_s=600),
        training={"steps": STEPS, "batchSize": BATCH, "sequenceLength": 32},
        rollout={
            "maxNewTokens": 8,
            "placement": "separate",
            "separate": {"replicas": 1, "accelerator": {"type": "v5p-16"}},
        },
        checkpoint={"everySteps": 1},
        export={"format": "none"},
        tensorboard={"enabled": False},
        preflight="Skip",
        env=[{"name": name, "value": value} for name, value in env.items()],
    )

    def samplers() -> list[Manifest]:
        return [pod for pod in jobs.pods("group") if labels.is_of_sampler(pod)]

    def shown() -> Any:
        return jobs.status("group"), jobs.pods("group")

    jobs.wait((tmp_path / "first-held").exists, shown=shown)
    first = {pod["metadata"]["uid"]: pod for pod in samplers()}
    assert sorted(map(index, first.values())) == ["0", "1"]
    process_of(next(pod for pod in first.values() if index(pod) == "1"), tmp_path).kill()
    jobs.wait(
        lambda: exit_codes(pod for pod in samplers() if pod["metadata"]["uid"] in first) == [75, 137], shown=shown
    )
    (tmp_path / "first").touch()
    jobs.wait((tmp_path / "second-held").exists, shown=shown)  # by samples of the group that was made anew
    again = [pod for pod in samplers() if pod["metadata"]["uid"] not in first]
    assert sorted(map(index, again)) == ["0", "1"]
    assert jobs.find(JOBSETS, "group")["status"].get("restarts", 0) == 0, "the trainer stays"
    assert jobs.find(JOBS, "group-sampler-0")["status"]["failed"] == 1, "a host that follows a lost one is free"
    jobs.wait(lambda: jobs.status("group").samplers.ready == 1, shown=shown)
    (tmp_path / "second").touch()
    assert jobs.wait_phase("group", "Succeeded").restarts == {}
    run = jobs.runs / "group"
    assert [line["step"] for line in runs.lines(run)] == list(range(1, STEPS + 1))
    for step in range(1, STEPS + 1):
        table = run / run_directory.SAMPLES / f"step-{step:08}.jsonl"
        samples = [json.loads(line) for line in table.read_text().splitlines()]
        assert len({(each["prompt"], each["completion"]) for each in samples}) > BATCH // 2
        assert len(samples) == BATCH, "none is lost, and none is there twice"
    assert (tmp_path / "calls").stat().st_size == STEPS * BATCH
