"""A sampler of two hosts in its pods: one is killed, and its Job makes both anew.

Native samplers are real processes; of vLLM's, the launcher of a host is real, and what it starts a stand-in.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.builders.cluster.fake_jobs import FAKE_TRAINER
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.trainer import quick, runs

from ptapi import run_directory
from ptkube.client import Kube
from ptkube.objects import container_statuses, label
from ptkube.resources import JOBS, JOBSETS, NODES, Manifest
from ptoperator.kube import labels

BATCH, STEPS = 8, 2
MARKS = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
    "cloud.google.com/gke-tpu-topology": "2x2x2",
    "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
}
ROOM = {"google.com/tpu": "8", "nvidia.com/gpu": "16", "cpu": "1000", "memory": "4000G"}
NAMESPACE = "NAMESPACE_OF_TEST"
"""A variable of each process, which tells it from those of other tests on this machine."""
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
def node_with_chips(kube: Kube) -> Iterator[None]:
    """The node pretends to be a slice of v5p and two machines of H100s: its processes compute on CPUs."""
    before = kube.get(NODES, "local")["status"]["allocatable"]
    kube.patch(NODES, "local", None, {"metadata": {"labels": MARKS}})
    kube.patch(NODES, "local", None, {"status": {"allocatable": ROOM}}, subresource="status")
    yield
    kube.patch(NODES, "local", None, {"metadata": {"labels": dict.fromkeys(MARKS)}})
    kube.patch(NODES, "local", None, {"status": {"allocatable": dict.fromkeys(ROOM) | before}}, subresource="status")


def process_of(pod: Manifest, rank: str) -> psutil.Process:
    """The first process of a sampler's pod. rank: the variable that holds its host's number."""
    marks = {NAMESPACE: pod["metadata"]["namespace"], "POSTTRAIN_SAMPLER_INDEX": "0", rank: index(pod)}
    words = processes(marks)
    assert words, f"pod {pod['metadata']['name']} has no process"
    return min(words, key=lambda process: process.pid)


def processes(marks: dict[str, str]) -> dict[psutil.Process, list[str]]:
    """Those with these variables, and the words of their commands."""
    words = {}
    for process in psutil.process_iter():
        try:
            if marks.items() <= process.environ().items():
                words[process] = process.cmdline()
        except (psutil.Error, OSError):
            continue
    return words


def follows(namespace: str) -> bool:
    """Return True once the part of a host that does not serve has started: the first host is then its own."""
    return any("--headless" in words for words in processes({NAMESPACE: namespace}).values())


def index(pod: Manifest) -> str:
    return label(pod, labels.COMPLETION_INDEX)


def exit_codes(pods: Iterable[Manifest]) -> list[int]:
    states = [each.get("state") or {} for pod in pods for each in container_statuses(pod)]
    return sorted(state["terminated"]["exitCode"] for state in states if "terminated" in state)


@pytest.mark.usefixtures("node_with_chips")
def test_a_sampler_of_two_hosts_of_which_one_is_killed_comes_back_whole(
    operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    env = {
        NAMESPACE: jobs.namespace,
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
        return [pod for pod in jobs.pods("group") if labels.is_beside(pod)]

    def shown() -> Any:
        return jobs.status("group"), jobs.pods("group")

    jobs.wait((tmp_path / "first-held").exists, shown=shown)
    first = {pod["metadata"]["uid"]: pod for pod in samplers()}
    assert sorted(map(index, first.values())) == ["0", "1"]
    process_of(next(pod for pod in first.values() if index(pod) == "1"), "JAX_PROCESS_ID").kill()
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


@pytest.mark.usefixtures("node_with_chips")
@pytest.mark.parametrize("lost", ["0", "1"], ids=["the one that serves", "the other"])
def test_a_vllm_server_of_two_hosts_of_which_one_is_killed_comes_back_whole(
    lost: str, operator: OperatorProcess, jobs: Any, tmp_path: Path
) -> None:
    jobs.create(
        "served",
        {
            "FAKE_WAIT": "1",
            "FAKE_STEP_S": "0.1",
            "PATH": f"{FAKE_TRAINER / 'bin'}:{os.environ['PATH']}",
            NAMESPACE: jobs.namespace,
        },
        model={"uri": "hf://Qwen/Qwen3-8B"},
        algorithm={"grpo": {"groupSize": 4}},
        rewards=[{"builtin": "gsm8k"}],
        rollout={
            "maxNewTokens": 8,
            "engine": "vllm",
            "vllm": {"weightsDirectory": f"{tmp_path}/weights"},
            "placement": "separate",
            "separate": {"replicas": 1, "accelerator": {"type": "h100-16"}},
        },
        volumes=[{"name": "shared", "mountPath": str(tmp_path), "persistentVolumeClaim": {"claimName": "shared"}}],
    )
    answers = jobs.runs / "served" / "samples"

    def servers() -> list[str]:
        """The names under which the model was served, in their order: uids of pods."""
        lines = answers.read_text().splitlines() if answers.exists() else []
        return list(dict.fromkeys(line.partition(" ")[0] for line in lines))

    def shown() -> Any:
        return servers(), jobs.status("served"), jobs.pods("served")

    def ready() -> bool:
        return bool(jobs.status("served").samplers.ready == 1)

    jobs.wait(lambda: len(servers()) == 1 and ready() and follows(jobs.namespace), shown=shown)
    first = {index(pod): pod for pod in jobs.pods("served") if labels.is_beside(pod)}
    assert servers() == [first["0"]["metadata"]["uid"]], "the trainer is answered by the first host"
    process_of(first[lost], "POSTTRAIN_HOST_INDEX").kill()
    jobs.wait(lambda: len(servers()) == 2 and ready(), shown=shown)
    uids = {pod["metadata"]["uid"] for pod in first.values()}

    def is_whole() -> bool:
        """Return True once both first pods have ended, as they should, and both have a successor."""
        pods = [pod for pod in jobs.pods("served") if labels.is_beside(pod)]
        old, new = ([pod for pod in pods if (pod["metadata"]["uid"] in uids) is is_old] for is_old in (True, False))
        return exit_codes(old) == [75, 137] and sorted(map(index, new)) == ["0", "1"]

    jobs.wait(is_whole, shown=shown)
    assert jobs.find(JOBS, "served-sampler-0")["status"]["failed"] == 1
    (jobs.runs / "served" / "finish").touch()
    assert jobs.wait_phase("served", "Succeeded").restarts == {}
