"""kill -9 of the operator at every write of a job's life: before it is sent, and after it is done but not answered."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.operator_process import Killer, OperatorProcess, WriteProxy

from ptkube.client import Kube
from ptkube.resources import CONFIGMAPS, CRDS, EVENTS, JOBSETS
from ptlocal.kubelet.ports import free_port

LOST = "lost the connection to the API server; retrying until it answers"


@pytest.mark.slow
def test_an_operator_killed_at_every_write_brings_a_job_to_its_end(
    control_plane: Any, kube: Kube, jobs: Any, tmp_path: Path
) -> None:
    killer = Killer()
    with WriteProxy(control_plane.kubeconfig, tmp_path, killer.on_write) as proxy:
        operator = OperatorProcess(proxy.kubeconfig, tmp_path, jobs.namespace)
        killer.operator = operator
        jobs.create("hunted", {"FAKE_CRASH_AT": "5", "FAKE_STEP_S": "2", "FAKE_WAIT": "yes"})
        operator.live_until(lambda: jobs.status("hunted").restarts and is_in(jobs, "Running"))
        jobs.edit("hunted", suspend=True)
        operator.live_until(lambda: is_in(jobs, "Suspended"))
        jobs.edit("hunted", suspend=False)
        operator.live_until(lambda: is_in(jobs, "Running"))
        jobs.mark("hunted")
        operator.live_until(lambda: is_in(jobs, "Succeeded"))
        operator.kill()
    status = jobs.status("hunted")
    assert str(status.phase) == "Succeeded"
    assert status.restarts == {"Unknown": 1}
    struck = [what for what, tries in killer.tries.items() if tries >= 2]
    assert len(struck) >= 12, struck
    assert any("PATCH" in what and "jobsets" in what for what in struck)
    assert not (jobs.runs / "hunted" / "doubled").exists()
    assert len(kube.list(JOBSETS, jobs.namespace).items) == 1
    ours = kube.list(CONFIGMAPS, jobs.namespace, labels="posttrain.dev/job=hunted").items
    assert len(ours) == 1
    reasons = Counter(
        event["reason"]
        for event in kube.list(EVENTS, jobs.namespace).items
        if event["involvedObject"]["kind"] == "PostTrainJob"
    )
    assert [reasons[once] for once in ("Created", "Accepted", "Restarting", "Suspended", "Resumed", "Succeeded")] == [
        1
    ] * 6
    jobs.delete("hunted")
    jobs.wait(lambda: jobs.left("hunted") == [])


def is_in(jobs: Any, phase: str, name: str = "hunted") -> bool:
    return str(jobs.status(name).phase) == phase


def test_an_operator_goes_on_after_the_api_server_was_away(control_plane: Any, jobs: Any, tmp_path: Path) -> None:
    with WriteProxy(control_plane.kubeconfig, tmp_path, lambda moment, what: True) as proxy:
        operator = OperatorProcess(proxy.kubeconfig, tmp_path, jobs.namespace, free_port())
        operator.start()
        try:
            operator.wait_ready()
            jobs.create("before", {"FAKE_WAIT": "yes"})
            jobs.wait_phase("before", "Starting", "Running")
            proxy.go_down()
            jobs.wait(lambda: LOST in operator.log.read_text())
            jobs.create("meanwhile")
            proxy.come_back()
            jobs.wait_phase("meanwhile", "Succeeded")
            jobs.mark("before")
            jobs.wait_phase("before", "Succeeded")
        finally:
            operator.kill()
    assert "Request attempt" not in operator.log.read_text()
    assert "Traceback" not in operator.log.read_text()


CUT = """
import runpy
from aiohttp import StreamReader

read, counts = StreamReader.read, iter(range(10**9))

async def cut(self, n=-1):
    if n == 1024 * 1024 and next(counts) == 1:  # kopf's second chunk
        self._buffer.clear()
        self._buffer_offset, self._size, self._protocol = 0, 0, Gone()
    return await read(self, n)

class Gone:
    connected = False

StreamReader.read = cut
runpy.run_module("ptoperator", run_name="__main__", alter_sys=True)
"""
"""The operator, with a watch whose connection has ended when its second chunk is read, and nobody has heard of it."""


def test_an_operator_outlives_a_watch_that_is_cut_while_it_is_read(
    control_plane: Any, jobs: Any, tmp_path: Path
) -> None:
    environment = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "POSTTRAIN_SHARED_FILESYSTEM": "true"}
    command = [sys.executable, "-c", CUT, "-n", jobs.namespace, "--port", str(free_port())]
    log = tmp_path / "operator.log"
    with log.open("ab") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process:
        try:
            jobs.create("first")
            jobs.wait(lambda: process.poll() is not None or "a watch was cut" in log.read_text())
            jobs.create("second")
            jobs.wait(lambda: process.poll() is not None or is_in(jobs, "Succeeded", "second"))
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()


def test_an_operator_outlives_the_deletion_of_jobsets_definition(
    control_plane: Any, kube: Kube, jobs: Any, tmp_path: Path
) -> None:
    definition = kube.get(CRDS, "jobsets.jobset.x-k8s.io")
    with WriteProxy(control_plane.kubeconfig, tmp_path, lambda moment, what: True) as proxy:
        proxy.late = "/customresourcedefinitions"  # the watch of JobSets ends before anybody hears why
        operator = OperatorProcess(proxy.kubeconfig, tmp_path, jobs.namespace, free_port())
        operator.start()
        try:
            operator.wait_ready()
            jobs.create("kept", {"FAKE_WAIT": "yes"})
            jobs.wait_phase("kept", "Running")
            kube.delete(CRDS, definition["metadata"]["name"])
            jobs.wait(lambda: "JobSet must be installed" in str(jobs.status("kept").conditions))
            kube.create(CRDS, {"metadata": {"name": definition["metadata"]["name"]}, "spec": definition["spec"]})
            definition = {}
            jobs.wait_phase("kept", "Running")
            assert not operator.is_dead()
        finally:
            operator.kill()
            if definition and definition["metadata"]["name"] not in _names(kube):
                kube.create(CRDS, {"metadata": {"name": definition["metadata"]["name"]}, "spec": definition["spec"]})


def _names(kube: Kube) -> set[str]:
    return {item["metadata"]["name"] for item in kube.list(CRDS).items}
