"""A job from ptctl's first word to its last: submitted, followed, suspended, failed; trained without a cluster."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.manifests import eventually

from ptkube.resources import NODES

Run = Callable[..., subprocess.CompletedProcess[str]]
Make = Callable[..., str]


@pytest.fixture(autouse=True)
def _needs_local_files(cluster: Any, kubeconfig: Path) -> None:
    if [node["metadata"]["name"] for node in cluster.kube.list(NODES).items] != ["local"]:
        pytest.skip("pods of a real cluster do not see this machine's files")


def alone(*words: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """`ptctl WORDS -f -`, told of no cluster."""
    command = [sys.executable, "-m", "ptctl", *words, "-f", "-"]
    return subprocess.run(command, input=stdin, text=True, capture_output=True, timeout=900)


def test_a_job_is_submitted_followed_and_looked_at(ptctl: Run, job: Make, tmp_path: Path) -> None:
    assert ptctl("workload", "create", "-f", "-", stdin=job("a", suspend=False)).returncode == 0
    followed = ptctl("workload", "logs", "a", "-f")
    assert followed.returncode == 0, followed.stderr
    assert "step 3/3" in followed.stdout
    assert followed.stderr.splitlines()[-1] == "job 'a' succeeded"
    done = ptctl("workload", "wait", "a", "--timeout", "60")
    assert done.stdout == "posttrainjob.posttrain.dev/a complete\n"
    assert ptctl("workload", "list").stdout.splitlines()[1].split()[:5] == ["a", "Succeeded", "sft", "cpu-1", "3/3"]
    assert len(ptctl("workload", "metrics", "a", "-o", "json").stdout.splitlines()) >= 3
    assert "trained" not in ptctl("workload", "logs", "a", "--tail", "0").stdout
    description = ptctl("workload", "describe", "a").stdout
    for words in ("3 of 3 (100%)", "Complete", "Succeeded", f"file://{tmp_path}/runs/a"):
        assert words in description
    assert ptctl("workload", "delete", "a", "--wait").returncode == 0
    assert (tmp_path / "runs" / "a" / "export").is_dir(), "results outlive the job"


def test_a_job_whose_data_is_missing_says_so_and_runs_when_it_is_created_again(
    ptctl: Run, job: Make, tmp_path: Path
) -> None:
    text = job("a", suspend=False, data=tmp_path / "nowhere.jsonl")
    assert ptctl("workload", "create", "-f", "-", stdin=text).returncode == 0
    done = ptctl("workload", "wait", "a", "--timeout", "600")
    assert done.returncode == 1
    assert "DataError" in done.stderr
    assert "nowhere.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    assert ptctl("workload", "delete", "a", "--wait").returncode == 0
    assert ptctl("workload", "create", "-f", "-", stdin=job("a", suspend=False)).returncode == 0
    again = ptctl("workload", "wait", "a", "--timeout", "600")
    assert again.returncode == 0, again.stderr


def test_train_beside_a_job_of_the_cluster_is_refused_with_its_pod(ptctl: Run, job: Make, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    assert ptctl("workload", "create", "-f", "-", stdin=job("a", steps=100_000, suspend=False)).returncode == 0
    metrics = run / "metrics.jsonl"
    eventually(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 3)
    owner = (run / "owner.json").read_bytes()
    done = alone("train", stdin=job("a", steps=100_000))
    assert done.returncode == 1
    assert done.stdout == ""
    holder = json.loads((run / "lease.json").read_text())["holder"]
    assert holder.startswith("pod a-")
    assert f"{holder} (since " in done.stderr
    assert "belongs to another job" in done.stderr
    assert (run / "owner.json").read_bytes() == owner
    assert not (run / "termination.json").exists()
    assert ptctl("workload", "delete", "a", "--wait").returncode == 0
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))


def test_data_are_looked_at_without_training(job: Make, tmp_path: Path) -> None:
    done = alone("data", "check", "-o", "json", "--examples", "1", stdin=job("look"))
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["data"]
    assert report["tokens"]["trainable"] > 0
    assert len(report["examples"]) == 1
    assert not (tmp_path / "runs" / "look").exists()


def test_data_that_a_run_would_end_on_are_a_failure_that_names_them(job: Make, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    done = alone("data", "check", stdin=job("look", data=tmp_path / "bad.jsonl"))
    assert done.returncode == 1
    assert "bad.jsonl line 2: column 'text': is a number" in done.stdout
    assert "Traceback" not in done.stderr


def test_train_runs_without_a_cluster(job: Make, tmp_path: Path) -> None:
    done = alone("train", "--set", "training.steps=2", stdin=job("solo"))
    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stdout
    run = tmp_path / "runs" / "solo"
    lines = done.stderr.splitlines()
    assert lines[:2] == [f"solo: sft of random://tiny on cpu-1 (1 virtual device), in {run}", "starting the trainer"]
    assert "loading the model ..." in lines
    assert lines[-1] == f"  ptctl workload tensorboard {run} --open"
    assert {f"model: {run}/export", f"  ptctl chat {run}"} <= set(lines)
    assert (tmp_path / "runs" / "solo" / "export").is_dir()
    shorter = alone("train", "--set", "training.steps=1", stdin=job("solo"))
    assert shorter.returncode == 1
    assert "spec.training.steps: was 2, is 1; the newest checkpoint is at step 2" in shorter.stderr
    fresh = alone("train", "--set", "training.steps=1", "--fresh", stdin=job("solo"))
    assert fresh.returncode == 0, fresh.stderr
    assert (tmp_path / "runs" / "solo.previous-1" / "export").is_dir()


def test_train_passes_a_failure_on_as_exit_1_without_a_traceback(job: Make, tmp_path: Path) -> None:
    done = alone("train", stdin=job("solo", data=tmp_path / "nowhere.jsonl"))
    assert (done.returncode, "nowhere.jsonl" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_train_that_is_ended_leaves_no_trainer_behind(job: Make, tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(job("solo", steps=100_000))
    child = subprocess.Popen(
        [sys.executable, "-m", "ptctl", "train", "-f", str(path)],
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    while "step 1/" not in (line := child.stdout.readline()):
        assert line, "the trainer ended before its first step"
    if number is signal.SIGINT:
        os.killpg(child.pid, number)  # as a terminal does
    else:
        os.kill(child.pid, number)
    child.stdout.close()
    child.wait(300)
    eventually(lambda: not _is_group_alive(child.pid))


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
