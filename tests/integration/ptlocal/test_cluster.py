"""The embedded cluster as a whole: up, down, status, reset, and what is left after every kind of death."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.builders.cluster.long_sleeps import a_long_sleep, running
from tests.builders.cluster.manifests import eventually

from ptkube.client import ApiError, Kube
from ptkube.resources import CONFIGMAPS, NODES, PODS, POSTTRAINJOBS, Manifest
from ptlocal import cluster as local
from ptlocal.locks import lock_holder
from ptlocal.paths import Layout
from ptlocal.processes import CLUSTER_MARK, with_marker
from ptlocal.supervisor.identity import cluster_id

QUIET: dict[str, Any] = {"say": lambda _: None}
BARE: dict[str, Any] = {**QUIET, "without": ["operator"]}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    local.down(tmp_path / "data", **QUIET, now=True)


def left_over(data: Path) -> list[str]:
    return [" ".join(p.cmdline()) for p in with_marker(CLUSTER_MARK, cluster_id(Layout(data)))]


def start_pod(kube: Kube, name: str, script: str, grace_s: int = 5) -> Manifest:
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s, "containers": [container]}
    kube.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    return until(lambda: _pod_in(kube, name, "Running"))


def _pod_in(kube: Kube, name: str, *phases: str) -> Manifest | None:
    pod = kube.get(PODS, name, "default")
    return pod if (pod.get("status") or {}).get("phase") in phases else None


def until(probe: Callable[[], Any]) -> Any:
    """The first true answer; an API server that is being restarted may refuse meanwhile."""

    def answer() -> Any:
        with suppress(ApiError):
            return probe()

    return eventually(answer, 600)


def test_a_cluster_starts_once_keeps_its_state_and_leaves_nothing(data: Path) -> None:
    assert local.status(data).phase == "stopped"
    first = local.up(data, **BARE)
    assert first.started
    again = local.up(data, **BARE)
    assert (again.started, again.pid, again.server) == (False, first.pid, first.server)
    status = local.status(data)
    assert (status.phase, status.pid, status.server) == ("ready", first.pid, first.server)
    assert [c.name for c in status.components] == ["api server", "controllers"]
    kube = Kube.load(str(first.kubeconfig))
    assert [n["metadata"]["name"] for n in kube.list(NODES).items] == ["local"]
    assert kube.list(POSTTRAINJOBS).items == []
    kube.create(CONFIGMAPS, {"metadata": {"name": "kept", "namespace": "default"}, "data": {"a": "b"}})

    assert local.down(data, **QUIET)
    assert local.status(data).phase == "stopped"
    assert left_over(data) == []
    assert not local.down(data, **QUIET)

    second = local.up(data, **BARE)
    assert second.server == first.server, "a kubeconfig that was copied stays good"
    assert Kube.load(str(second.kubeconfig)).get(CONFIGMAPS, "kept", "default")["data"] == {"a": "b"}


def test_down_gives_pods_their_grace_and_reports_a_node_shutdown(data: Path, tmp_path: Path) -> None:
    kube = Kube.load(str(local.up(data, **BARE).kubeconfig))
    note = tmp_path / "note"
    start_pod(kube, "p", f"trap 'sleep 1; echo saved > {note}; exit 75' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: list(kube.pod_logs("p", "default")) == ["up"])
    local.down(data, **QUIET)
    assert note.read_text() == "saved\n"
    assert left_over(data) == []
    kube = Kube.load(str(local.up(data, **BARE).kubeconfig))
    pod = kube.get(PODS, "p", "default")
    assert pod["status"]["phase"] == "Failed"
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 75
    assert "DisruptionTarget" in [c["type"] for c in pod["status"]["conditions"]]


def test_down_now_does_not_wait_for_a_long_grace(data: Path) -> None:
    kube = Kube.load(str(local.up(data, **BARE).kubeconfig))
    start_pod(kube, "p", "trap '' TERM; while :; do sleep 0.05; done", grace_s=600)
    started = time.monotonic()
    local.down(data, **QUIET, now=True)
    assert time.monotonic() - started < 300  # of the 600 s of its grace
    assert left_over(data) == []


def test_after_kill_9_of_the_supervisor_the_next_up_leaves_no_orphan(data: Path) -> None:
    info = local.up(data, **BARE)
    kube = Kube.load(str(info.kubeconfig))
    # a child in a session of its own, and one that has dropped the marker from its environment
    sleeps = a_long_sleep(), a_long_sleep()
    start_pod(kube, "p", f"setsid {sleeps[0]} & env -i {sleeps[1]} & while :; do sleep 0.05; done", grace_s=600)
    until(lambda: len(running(*sleeps)) == 2)
    os.kill(info.pid, signal.SIGKILL)
    until(lambda: lock_holder(Layout(data).pid_file) is None)
    assert local.status(data).phase == "stopped"
    kube = Kube.load(str(local.up(data, **BARE).kubeconfig))
    assert running(*sleeps) == []
    pod = until(lambda: _pod_in(kube, "p", "Failed"))
    end = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (137, "ContainerStatusUnknown")
    assert "DisruptionTarget" in [c["type"] for c in pod["status"]["conditions"]]


def test_after_kill_9_of_the_supervisor_down_and_reset_clean_up_too(data: Path) -> None:
    info = local.up(data, **BARE)
    kube = Kube.load(str(info.kubeconfig))
    sleep = a_long_sleep()
    start_pod(kube, "p", f"setsid {sleep} & while :; do sleep 0.05; done", grace_s=600)
    until(lambda: running(sleep))
    os.kill(info.pid, signal.SIGKILL)
    until(lambda: lock_holder(Layout(data).pid_file) is None)
    assert not local.down(data, **QUIET)
    assert running(sleep) == []
    assert local.reset(data, **QUIET)
    assert not data.exists()


def _pid(data: Path, name: str) -> int:
    component = next(c for c in local.status(data).components if c.name == name)
    assert component.pid is not None
    return component.pid


@pytest.mark.parametrize("name", ["api server", "operator"])
def test_a_killed_child_comes_back_and_everything_goes_on(data: Path, name: str) -> None:
    info = local.up(data, **QUIET)
    kube = Kube.load(str(info.kubeconfig))
    start_pod(kube, "before", "while :; do sleep 0.05; done")
    victim = _pid(data, name)
    os.kill(victim, signal.SIGKILL)
    until(
        lambda: any(
            c.name == name and c.restarts == 1 and c.pid not in (None, victim) for c in local.status(data).components
        )
    )
    until(lambda: _pod_in(kube, "before", "Running"))
    until(lambda: start_pod(kube, "after", "sleep 30"))
    assert local.status(data).server == info.server


def test_two_clusters_live_side_by_side(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    try:
        one, two = local.up(data, **BARE), local.up(other, **BARE)
        assert one.server != two.server
        first, second = Kube.load(str(one.kubeconfig)), Kube.load(str(two.kubeconfig))
        start_pod(first, "mine", "sleep 30")
        assert second.list(PODS).items == []
        local.down(other, **QUIET)
        assert local.status(data).phase == "ready"
        assert _pod_in(first, "mine", "Running")
    finally:
        local.down(other, **QUIET, now=True)


def test_many_starts_at_once_make_one_cluster(data: Path) -> None:
    program = (
        "from ptlocal.cluster import up; from pathlib import Path\n"
        f"info = up(Path({str(data)!r}), without=['operator'], say=lambda _: None); print(info.pid, info.started)"
    )
    starting = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=900)[0].split() for process in starting]
    assert len({pid for pid, _ in outputs}) == 1
    assert sorted(started for _, started in outputs) == ["False", "False", "True"]


def test_reset_forgets_everything_and_touches_nothing_else(data: Path, tmp_path: Path) -> None:
    local.up(data, **BARE)
    assert local.reset(data, **QUIET)
    assert not data.exists()
    assert not local.reset(data, **QUIET)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("x")
    with pytest.raises(local.LocalClusterError, match="is not an embedded cluster's directory"):
        local.reset(precious, **QUIET)
    assert (precious / "thesis").exists()


@pytest.mark.parametrize("word", ["", "API server", "resource definitions"])
def test_ctrl_c_while_starting_leaves_nothing_running(data: Path, word: str) -> None:
    program = f"from ptlocal.cluster import up; from pathlib import Path; up(Path({str(data)!r}), without=['operator'])"
    starting = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert starting.stderr is not None
    if word:
        while word not in (line := starting.stderr.readline()):
            assert line, "it ended before it was interrupted"
    else:  # while its supervisor starts, before anything is said
        until(lambda: Layout(data).logs.exists())
        time.sleep(0.05)
    starting.send_signal(signal.SIGINT)
    starting.communicate(timeout=900)
    assert starting.returncode != 0
    assert lock_holder(Layout(data).pid_file) is None
    assert local.status(data).phase == "stopped"
    if Layout(data).cluster_file.exists():
        assert left_over(data) == []


def test_a_start_that_fails_says_why_and_leaves_nothing(data: Path) -> None:
    data.mkdir()
    Layout(data).database.write_bytes(b"this is not a database" * 100)
    with pytest.raises(local.LocalClusterError, match="database") as caught:
        local.up(data, **BARE)
    assert str(Layout(data).logs) in str(caught.value)
    assert "Traceback" not in str(caught.value).splitlines()[0]
    assert local.status(data).phase == "failed"
    assert left_over(data) == []


def test_an_idle_cluster_uses_next_to_no_cpu(data: Path) -> None:
    info = local.up(data, **BARE)
    processes = [psutil.Process(info.pid), psutil.Process(_pid(data, "api server"))]
    used: list[float] = []
    for _ in range(6):  # again: it may still have been at work
        before = [sum(p.cpu_times()[:2]) for p in processes]
        time.sleep(10)
        used = [sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True)]
        if max(used) < 0.2:
            break
    assert max(used) < 0.2, f"CPU seconds in 10 s: supervisor {used[0]:.2f}, API server {used[1]:.2f}"
    assert processes[0].memory_info().rss < 100 * 2**20
