"""`runtime: container`: any image and command, with what posttrain's trainer gets."""

import os
import subprocess
from typing import Any

import pytest
from tests.builders.operator.world import job_manifest
from tests.unit.ptoperator.render.test_render import env_of, job, made_for, pod_spec

from ptapi.errors import SpecError
from ptkube.resources import Manifest
from ptoperator.render.pods.command import NUMBERED

COMMAND = ["python", "-m", "mine"]
GS = {"uri": "gs://bucket/runs"}


def made(accelerator: str = "v6e-16", slices: int = 1, **spec: Any) -> Manifest:
    mine = {"image": "registry.example/mine:1", "runtime": {"container": {"command": COMMAND, "args": ["--fast"]}}}
    return made_for(accelerator, slices, **{**mine, **spec})


def test_the_command_runs_as_it_is_written_in_the_jobs_image() -> None:
    (container,) = pod_spec(made())["containers"]
    assert (container["image"], container["command"], container["args"]) == (
        "registry.example/mine:1", COMMAND, ["--fast"],
    )  # fmt: skip


def test_all_but_the_program_is_as_for_the_native_runtime() -> None:
    ours, theirs = made_for("v6e-16"), made()
    pod, foreign = pod_spec(ours), pod_spec(theirs)
    assert foreign.pop("shareProcessNamespace") is True
    for key in ("image", "command", "args", "env"):
        del pod["containers"][0][key], foreign["containers"][0][key]
    assert theirs == ours


def test_it_is_told_its_run_directory_and_has_a_home_that_it_can_write() -> None:
    native, env = env_of(made_for("v6e-16", output=GS)), env_of(made(output=GS))
    assert native.pop("LIBTPU_INIT_ARGS")  # of our own programs
    added = {name: env[name] for name in env.keys() - native.keys()}
    assert added == {"POSTTRAIN_RUN_DIRECTORY": "gs://bucket/runs/llama", "HOME": "/tmp", "USER": "posttrain"}
    assert {name: env[name] for name in native} == native
    assert env_of(made(env=[{"name": "HOME", "value": "/home/me"}]))["HOME"] == "/home/me"


@pytest.mark.parametrize(("accelerator", "slices", "containers"), [("v6e-16", 2, 1), ("tpu7x-16", 1, 2)])
def test_where_kubernetes_cannot_number_the_processes_a_line_of_shell_does(
    accelerator: str, slices: int, containers: int
) -> None:
    rendered = made(accelerator, slices)
    rendered_containers = pod_spec(rendered)["containers"]
    assert len(rendered_containers) == containers
    assert all(each["command"] == ["/bin/sh", "-c", NUMBERED, "sh", *COMMAND] for each in rendered_containers)
    assert all(each["args"] == ["--fast"] for each in rendered_containers)
    assert "JAX_PROCESS_ID" not in env_of(rendered)


@pytest.mark.parametrize(
    ("slice_index", "host", "hosts", "more", "number"),
    [
        (0, 0, 4, {}, 0),
        (1, 2, 4, {}, 6),
        (2, 1, 2, {"POSTTRAIN_PROCESSES_PER_HOST": "2", "POSTTRAIN_PROCESS_IN_HOST": "1"}, 11),
    ],
)
def test_that_line_counts_like_the_trainer_and_becomes_the_program(
    slice_index: int, host: int, hosts: int, more: dict[str, str], number: int
) -> None:
    indices = {
        "POSTTRAIN_SLICE_INDEX": str(slice_index),
        "POSTTRAIN_HOST_INDEX": str(host),
        "POSTTRAIN_HOSTS_PER_SLICE": str(hosts),
        **more,
    }
    words = ["/bin/sh", "-c", NUMBERED, "sh", "/bin/sh", "-c", 'echo "$JAX_PROCESS_ID $1 $$"', "x", "a b"]
    child = subprocess.Popen(words, env={**os.environ, **indices}, stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate()
    assert out.split() == [str(number), "a", "b", str(child.pid)]


def test_with_pathways_it_is_the_head_that_runs_the_command() -> None:
    rendered = made("tpu7x-16", 2, output=GS, pathways={"enabled": True})
    head = pod_spec(rendered)
    assert head["shareProcessNamespace"] is True
    assert head["containers"][0]["command"] == COMMAND
    assert head["containers"][0]["securityContext"]["runAsNonRoot"] is True
    env = env_of(rendered)
    assert (env["JAX_PLATFORMS"], env["POSTTRAIN_RUN_DIRECTORY"]) == ("proxy", "gs://bucket/runs/llama")
    worker = rendered["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    assert worker["containers"][0]["image"] != "registry.example/mine:1"
    assert "shareProcessNamespace" not in worker


def test_its_batch_is_its_own_affair() -> None:
    spec = {"accelerator": {"type": "v6e-16"}, "training": {"steps": 1, "batchSize": 2}}
    mine = {"image": "registry.example/mine:1", "runtime": {"container": {"command": COMMAND}}}
    assert job(job_manifest(**spec, **mine)).spec.training.batch_size == 2
    with pytest.raises(SpecError, match=r"training\.batchSize"):
        job(job_manifest(**spec))
