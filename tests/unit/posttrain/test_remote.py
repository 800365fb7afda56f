"""Jobs of `@posttrain.remote`: what its options become, and a call through a bucket to the trainer's verb and back."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
from tests.builders.servers import bucket as bucketserver

import posttrain
from ptctl.runs.storage import bucket as ptctl_bucket
from ptkube.client import Kube


class Answering:
    """A cluster with one job, which has ended."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job

    def get(self, *_: Any) -> dict[str, Any]:
        return self.job


def ended(job: posttrain.PostTrainJob, tmp_path: Path, environment: dict[str, str]) -> posttrain.Run:
    """Run the job's function as its pod would, and return a run with the status that its operator would write."""
    path = tmp_path / "job.yaml"
    path.write_text(job.to_yaml())
    command = [sys.executable, "-m", "pttrainer", "function", str(path)]
    done = subprocess.run(
        command, env={**os.environ, **environment, "POSTTRAIN_TERMINATION_LOG": str(tmp_path / "end")}
    )
    end = json.loads((tmp_path / "end").read_text())
    failure = {"failureClass": end["failureClass"], "message": end["message"]}
    status = {"phase": "Failed", "failure": failure} if done.returncode else {"phase": "Succeeded"}
    return posttrain.Run(
        cast(Kube, Answering({**job.manifest(), "status": status})), {**job.manifest(), "status": status}
    )


def test_arguments_values_and_exceptions_pass_through_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @posttrain.remote(accelerator="cpu-1", output="gs://bucket/calls")
    def total(array: Any, most: float) -> float:
        if array.sum() > most:
            raise OverflowError("too much")
        return float(array.sum())

    array = numpy.arange(50_000.0)
    with bucketserver.serve_here(monkeypatch) as buckets:
        good, bad = total.job(array, 1e12), total.job(array, most=1.0)
        assert len(buckets.names("bucket", "calls/.packed/")) == 2
        assert total.job(array, most=1.0).runtime == bad.runtime
        assert len(buckets.names("bucket", "calls/.packed/")) == 2, "the same arguments are written once"
        value = ended(good, tmp_path, buckets.environment()).value()
        assert value == array.sum()
        run = ended(bad, tmp_path, buckets.environment())
        with pytest.raises(OverflowError, match="too much") as raised:
            run.value()
        assert "in total" in str(raised.value.__cause__)


def test_a_failure_is_raised_as_it_is_where_the_run_directory_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    job = posttrain.remote(accelerator="cpu-1", output="gs://bucket/calls")(abs).job(1).manifest()
    job["status"] = {"phase": "Failed", "failure": {"failureClass": "ImagePull", "message": "no such image"}}
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(ptctl_bucket, "_PATIENCE_S", 0.1)
    ptctl_bucket._client.cache_clear()
    with pytest.raises(posttrain.JobFailed, match="no such image"):
        posttrain.Run(cast(Kube, Answering(job)), job).value()
    ptctl_bucket._client.cache_clear()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accelerator": "v6e-9"}, "spec.accelerator.type: v6e-9"),
        ({"secrets": {"TOKEN": "Not A Name"}}, r"spec.env\[0\].valueFrom.secretKeyRef.name: Not A Name"),
        ({"volumes": {"data": "claim"}}, r"spec.volumes\[0\].mountPath: data"),
        ({"capacity": "cheap"}, r"spec.capacity\[0\].type: cheap"),
        ({"requirements": ["-r x"]}, r"spec.runtime.function.requirements\[0\]: \"-r x\""),
        ({"queues": "team"}, "did you mean spec.queue"),
    ],
)
def test_a_wrong_option_names_the_field_of_the_job(options: dict[str, Any], words: str) -> None:
    decorated = posttrain.remote(**{"accelerator": "cpu-1", "output": "gs://bucket/calls", **options})(len)
    with pytest.raises(posttrain.SpecError, match=words):
        decorated.job([])


def test_every_option_is_a_field_of_the_job() -> None:
    @posttrain.remote(
        accelerator={"type": "v6e-8", "slices": 2},
        output="gs://bucket/calls",
        namespace="team-a",
        image="registry.example/mine:1",
        env={"A": "b"},
        secrets={"HF_TOKEN": "hf", "KEY": "keys/one"},
        volumes={"/mnt/data": "data"},
        capacity=["spot", "onDemand"],
        timeout=90,
        run_policy={"max_restarts": 0},
        queue="team",
    )
    def nothing() -> None: ...

    job = nothing.job()
    spec = job.manifest()["spec"]
    assert job.namespace == "team-a"
    assert spec["accelerator"] == {"type": "v6e-8", "slices": 2}
    assert spec["env"] == [
        {"name": "A", "value": "b"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "one"}}},
    ]
    claim = {"claimName": "data"}
    assert spec["volumes"] == [{"name": "volume-0", "mountPath": "/mnt/data", "persistentVolumeClaim": claim}]
    assert spec["capacity"] == [{"type": "spot"}, {"type": "onDemand"}]
    assert spec["runPolicy"] == {"maxRestarts": 0, "activeDeadlineSeconds": 90}
    assert (spec["queue"], spec["image"]) == ("team", "registry.example/mine:1")


def test_without_an_output_the_call_is_refused_and_says_what_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        local_output = None

    monkeypatch.delenv("POSTTRAIN_OUTPUT", raising=False)
    decorated = posttrain.remote(accelerator="cpu-1", client=cast(posttrain.Client, Elsewhere()))(len)
    with pytest.raises(posttrain.Error, match=r"output of len: \(missing\): accepted: gs://bucket/directory"):
        decorated.submit([])
    monkeypatch.setenv("POSTTRAIN_OUTPUT", "gs://bucket/calls")
    assert decorated.job([]).output.uri == "gs://bucket/calls"


def test_a_function_that_calls_another_one_calls_it_in_its_own_job() -> None:
    @posttrain.remote(accelerator="cpu-1", output="gs://bucket/calls")
    def inner(number: int) -> int:
        return number + 1

    @posttrain.remote(accelerator="cpu-1", output="gs://bucket/calls")
    def outer(number: int) -> int:
        return 2 * inner(number)

    function = outer.job(3).runtime.function
    assert function is not None
    names: dict[str, Any] = {}
    exec(function.code or "", names)
    assert names["outer"]() == 8


def test_what_is_too_large_for_a_job_is_not_written_past_a_claim(tmp_path: Path) -> None:
    @posttrain.remote(accelerator="cpu-1", output=f"{tmp_path}/data/calls", volumes={f"{tmp_path}/data": "claim"})
    def first(array: Any) -> float:
        return float(array[0])

    assert first.job(numpy.arange(10)).runtime.function
    with pytest.raises(
        posttrain.Error, match=r"a call of first: more than 65,536 bytes .*\nhint: put the data on the claim"
    ):
        first.job(numpy.arange(100_000))
    assert not (tmp_path / "data").exists()


def test_a_map_whose_submission_fails_leaves_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self) -> None:
            self.names: list[str] = []

        def submit(self, job: posttrain.PostTrainJob) -> Any:
            if len(self.names) == 2:
                raise posttrain.Error("quota exceeded")
            self.names.append(job.name)
            return self

        def delete(self) -> None:
            self.names.pop()

    full = Full()
    decorated = posttrain.remote(accelerator="cpu-1", output="gs://lab/c", client=cast(posttrain.Client, full))(abs)
    with pytest.raises(posttrain.Error, match="quota exceeded"):
        decorated.map([1, 2, 3])
    assert full.names == []
