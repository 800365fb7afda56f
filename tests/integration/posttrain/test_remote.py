"""`@posttrain.remote` against the session's cluster: values, exceptions, logs, attaching again, restarts."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest

import posttrain
from ptkube.resources import PODS
from ptoperator.kube import labels


@pytest.fixture
def on(client: posttrain.Client, tmp_path: Path) -> dict[str, Any]:
    return {"accelerator": "cpu-2", "client": client, "output": str(tmp_path / "functions")}


def test_a_call_returns_the_value_and_prints_what_the_function_prints(
    on: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    offset = 1

    @posttrain.remote(**on, env={"GREETING": "hello"})
    def add(left: int, right: int = 2) -> dict[str, Any]:
        print(os.environ["GREETING"], flush=True)
        return {"sum": left + right + offset, "pid": os.getpid()}

    value = add(3)
    assert value["sum"] == 6
    assert value["pid"] != os.getpid()
    assert "hello\n" in capfd.readouterr().err


def test_an_exception_comes_back_with_its_traceback_there(
    client: posttrain.Client, kubeconfig: Path, on: dict[str, Any]
) -> None:
    @posttrain.remote(**on)
    def divide(number: int) -> float:
        return 1 / number

    run = divide.submit(0)
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        run.value(timeout=300)
    cause = raised.value.__cause__
    assert isinstance(cause, posttrain.RemoteTraceback)
    assert "in divide" in str(cause)
    assert "return 1 / number" in str(cause)
    status = client.get(run.name).status
    assert (status.algorithm, status.restarts) == ("function", 0), "it is not tried again"
    assert status.failure == "UserCode: divide: ZeroDivisionError: division by zero"
    described = subprocess.run(
        [sys.executable, "-m", "ptctl", "workload", "describe", run.name, "-n", run.namespace],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(r"Algorithm: +function\n.*Function: +divide\n", described, re.DOTALL)
    assert "not-read" not in described


def test_large_arguments_and_values_go_by_reference_and_a_map_keeps_the_order(
    client: posttrain.Client, on: dict[str, Any], tmp_path: Path
) -> None:
    @posttrain.remote(**on)
    def times(pair: Any) -> Any:
        factor, array = pair
        return factor * array

    big = numpy.arange(200_000.0)
    jobs = [times.job((factor, big)) for factor in (2, 3)]
    assert all(job.runtime.function and job.runtime.function.arguments for job in jobs)
    runs = [client.submit(job) for job in jobs]
    assert [run.value(timeout=300)[5] for run in runs] == [10.0, 15.0]
    again = posttrain.Client.get(client, runs[0].name)
    assert again.value().sum() == 2 * big.sum(), "attached by name"
    assert list(times.map([(1, 1), (2, 2)])) == [1, 4]
    assert len(list((tmp_path / "functions" / ".packed").iterdir())) == 2, "by content"


def test_a_stopped_function_is_called_again_and_packages_are_installed_once(
    client: posttrain.Client, on: dict[str, Any], tmp_path: Path
) -> None:
    wheel = tmp_path / "shift-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("shift.py", "by = 41\n")
        archive.writestr("shift-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: shift\nVersion: 1.0\n")
        archive.writestr("shift-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("shift-1.0.dist-info/RECORD", "")
    first = tmp_path / "first"

    @posttrain.remote(**on, requirements=[str(wheel)])
    def shifted(number: int) -> int:
        import shift  # type: ignore[import-not-found]

        if not first.exists():
            first.write_text(str(os.getpid()))
            time.sleep(300)
        return number + int(shift.by)

    run = shifted.submit(1)
    deadline = time.monotonic() + 300
    while not first.exists() or not first.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(int(first.read_text()), signal.SIGTERM)
    assert run.value(timeout=300) == 42
    assert run.status.restarts == 1
    pods = client._kube.list(PODS, client.namespace, labels=labels.selector(run.name)).items
    assert all(pod["metadata"]["labels"].get(labels.RESTART_ATTEMPT) == "1" for pod in pods)
    text = "\n".join(run.logs())
    assert "installing" not in text, "the second attempt takes what the first one kept"


def test_what_cannot_be_returned_is_named(on: dict[str, Any]) -> None:
    @posttrain.remote(**on)
    def opened() -> Any:
        return threading.Lock()

    with pytest.raises(posttrain.JobFailed, match="opened: returned a lock, which cannot travel"):
        opened.submit().value(timeout=300)


def test_every_process_of_several_calls_it_and_the_first_ones_value_returns(
    on: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    @posttrain.remote(**{**on, "accelerator": {"type": "cpu-1", "slices": 2}})
    def devices() -> tuple[int, int, int]:
        import jax

        print(f"I am {jax.process_index()}", flush=True)
        return jax.process_count(), len(jax.devices()), jax.process_index()

    assert devices() == (2, 2, 0)
    lines = capfd.readouterr().err.splitlines()
    assert {"[0] I am 0", "[1] I am 1"} <= set(lines)
