"""What is promised of our own server alone: survival, one writer, credentials, pod logs from the kubelet's files.

These tests start servers of their own, whatever the session's API server is.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.api_access import Cluster
from tests.builders.cluster.manifests import MERGE, configmap, eventually, pod, widget

from ptkube.client import ApiError, Kube
from ptkube.resources import CONFIGMAPS, NAMESPACES
from ptkube.resources import PODS as _PODS
from ptlocal.paths import Layout

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ptlocal.apiserver", "--data", str(folder), "--port", "0"]
    with (folder / "apiserver.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout.readline(), (folder / "apiserver.log").read_text()
    return process


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    process = start(folder)
    try:
        yield Cluster(folder / "kubeconfig", is_embedded=True, data=folder)
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as cluster:
        yield cluster


def kill_after(process: subprocess.Popen[bytes], kill_now: threading.Event) -> None:
    kill_now.wait()
    process.kill()


def test_every_acknowledged_write_survives_kill_9(tmp_path: Path) -> None:
    """Killed again and again in the middle of writes, it loses nothing that it said it stored."""
    acknowledged: dict[str, str] = {}
    kube: Kube | None = None
    for life in range(4):
        process = start(tmp_path)
        kube = kube or Kube.load(str(tmp_path / "kubeconfig"))
        kill_now = threading.Event()
        killer = threading.Thread(target=kill_after, args=(process, kill_now))
        killer.start()
        try:
            for number in range(100_000):
                if number == 10 + 7 * life:
                    kill_now.set()  # while the next ones are written
                name = f"life-{life}-{number}"
                made = kube.create(CONFIGMAPS, configmap(name, {"n": str(number)}, namespace="default"))
                acknowledged[name] = made["metadata"]["resourceVersion"]
        except ApiError:
            pass  # it was killed
        finally:
            kill_now.set()
            killer.join()
        process.wait(60)
    with running(tmp_path) as cluster:
        listing = cluster.kube.list(CONFIGMAPS, "default")
        stored = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listing.items}
    assert len(acknowledged) > 20
    assert acknowledged.items() <= stored.items()
    assert len(stored) <= len(acknowledged) + 4, (
        "at most the write in flight when it was killed is there unacknowledged"
    )
    assert len(set(stored.values())) == len(stored), "no version was given twice"
    assert int(listing.resource_version) >= max(map(int, stored.values()))


def test_a_restart_keeps_address_credentials_definitions_and_watches(tmp_path: Path) -> None:
    crd = json.loads((Path(__file__).parent / "widget_crd.json").read_text())
    widgets = "/apis/conformance.posttrain.dev/v1/namespaces/default/widgets"
    with running(tmp_path) as cluster:
        before = (tmp_path / "kubeconfig").read_text()
        cluster.http("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).expect(201)
        made = cluster.http("POST", widgets, widget("a")).expect(201)
        version = cluster.http("GET", widgets).expect(200)["metadata"]["resourceVersion"]
        cluster.http("DELETE", f"{widgets}/a").expect(200)
    with running(tmp_path) as cluster:
        assert (tmp_path / "kubeconfig").read_text() == before
        with cluster.watch(f"{widgets}?watch=1&resourceVersion={version}") as watch:
            assert watch.first(1) == [("DELETED", "a")], "what happened before the restart is still replayed"
        again = cluster.http("POST", widgets, widget("a")).expect(201)
        assert int(again["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        assert cluster.http("POST", widgets, widget("b", {"size": 0})).status == 422


def test_a_namespace_that_was_being_deleted_goes_on_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        cluster.kube.create(NAMESPACES, {"metadata": {"name": "going"}})
        maps = "/api/v1/namespaces/going/configmaps"
        cluster.http("POST", maps, configmap("held", finalizers=["posttrain.dev/x"])).expect(201)
        cluster.http("DELETE", "/api/v1/namespaces/going").expect(200)
    with running(tmp_path) as cluster:
        cluster.http("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, content_type=MERGE).expect(200)
        eventually(lambda: cluster.http("GET", "/api/v1/namespaces/going").status == 404)


def test_a_second_server_on_the_same_directory_is_refused(server: Cluster) -> None:
    command = [sys.executable, "-m", "ptlocal.apiserver", "--data", str(server.data), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 1
    assert "another API server runs on" in done.stderr
    assert "Traceback" not in done.stderr
    server.http("GET", MAPS).expect(200)


def test_credentials_are_for_the_owner_alone(server: Cluster) -> None:
    assert server.data is not None
    for path in (server.kubeconfig, *(server.data / "pki").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((server.data / "pki").stat().st_mode) == 0o700
    assert "https://127.0.0.1:" in server.kubeconfig.read_text()
    assert server.http("GET", MAPS, token="").status == 401
    assert server.http("GET", MAPS, token="wrong").expect(401)["reason"] == "Unauthorized"


def test_it_ends_on_sigterm_with_watches_open(tmp_path: Path) -> None:
    process = start(tmp_path)
    cluster = Cluster(tmp_path / "kubeconfig")
    with cluster.watch(f"{MAPS}?watch=1") as watch:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        watch.until_over()


def test_a_version_that_is_too_old_is_gone(tmp_path: Path) -> None:
    """With a journal of 50 changes instead of thousands."""
    code = (
        "from ptlocal.apiserver.storage import store; store.JOURNAL_LENGTH = 50; store._PRUNE_EVERY = 10; "
        "from ptlocal.apiserver.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "--data", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    cluster = Cluster(tmp_path / "kubeconfig")
    try:
        version = cluster.http("POST", MAPS, configmap("a")).expect(201)["metadata"]["resourceVersion"]
        for number in range(80):
            cluster.http("PATCH", f"{MAPS}/a", {"data": {"n": str(number)}}, content_type=MERGE).expect(200)
        status = cluster.http("GET", f"{MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=1").expect(410)
        assert (status["reason"], status["code"]) == ("Expired", 410)
        assert "too old resource version" in status["message"]
        now = cluster.http("GET", MAPS).expect(200)["metadata"]["resourceVersion"]
        assert cluster.http("GET", f"{MAPS}?watch=1&resourceVersion={now}&timeoutSeconds=1").status == 200
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def logging_pod(server: Cluster) -> tuple[Cluster, Path, Any]:
    """A pod on a node, its log file, and a function that writes its container's state."""
    server.http("POST", PODS, pod("p", nodeName="n", restartPolicy="OnFailure")).expect(201)
    uid = server.http("GET", f"{PODS}/p").expect(200)["metadata"]["uid"]
    assert server.data is not None
    log = Layout(server.data).container_log(uid, "main", 0)
    log.parent.mkdir(parents=True)

    def set_state(state: dict[str, Any], restarts: int = 0, phase: str = "Running") -> None:
        container = {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": restarts}
        status = {"status": {"phase": phase, "containerStatuses": [{**container, "state": state}]}}
        server.http("PATCH", f"{PODS}/p/status", status, content_type=MERGE).expect(200)

    return server, log, set_state


def test_logs_are_read_from_the_kubelets_files(logging_pod: tuple[Cluster, Path, Any]) -> None:
    server, log, set_state = logging_pod
    status = server.http("GET", f"{PODS}/p/log", accept="*/*").expect(400)
    assert status["message"] == 'container "main" in pod "p" is waiting to start: ContainerCreating'
    set_state({"running": {}})
    assert server.http("GET", f"{PODS}/p/log", accept="*/*").text == ""
    log.write_bytes(b"one\ntwo\nthree\n\xff\xfe\n")
    assert server.http("GET", f"{PODS}/p/log", accept="*/*").text.splitlines()[:3] == ["one", "two", "three"]
    assert server.http("GET", f"{PODS}/p/log?tailLines=2", accept="*/*").text.splitlines()[0] == "three"
    assert server.http("GET", f"{PODS}/p/log?limitBytes=3", accept="*/*").text == "one"
    assert server.http("GET", f"{PODS}/p/log?container=nobody", accept="*/*").status == 400
    first = server.http("GET", f"{PODS}/p/log?timestamps=true&limitBytes=3", accept="*/*").text
    assert first.startswith("20")
    assert first.endswith("Z one")


def test_the_previous_runs_log_can_be_asked_for(logging_pod: tuple[Cluster, Path, Any]) -> None:
    server, log, set_state = logging_pod
    set_state({"running": {}})
    log.write_text("first run\n")
    assert server.http("GET", f"{PODS}/p/log?previous=true", accept="*/*").status == 400
    set_state({"running": {}}, restarts=1)
    log.with_name("1.log").write_text("second run\n")
    assert server.http("GET", f"{PODS}/p/log", accept="*/*").text == "second run\n"
    assert server.http("GET", f"{PODS}/p/log?previous=true", accept="*/*").text == "first run\n"


def test_following_a_log_ends_with_the_container(logging_pod: tuple[Cluster, Path, Any]) -> None:
    server, log, set_state = logging_pod
    set_state({"running": {}})
    log.write_text("one\n")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(server.kube.pod_logs("p", "default", follow=True)))
    reader.start()
    eventually(lambda: lines == ["one"])
    with log.open("a") as out:
        out.write("two\n")
    eventually(lambda: lines == ["one", "two"])
    with log.open("a") as out:
        out.write("last words\n")
    set_state({"terminated": {"exitCode": 0}}, phase="Succeeded")
    reader.join(60)
    assert not reader.is_alive()
    assert lines == ["one", "two", "last words"]


def test_following_ends_when_the_pod_is_deleted(logging_pod: tuple[Cluster, Path, Any]) -> None:
    server, log, set_state = logging_pod
    set_state({"running": {}})
    log.write_text("one\n")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(server.kube.pod_logs("p", "default", follow=True)))
    reader.start()
    eventually(lambda: lines == ["one"])
    server.http("DELETE", f"{PODS}/p?gracePeriodSeconds=0").expect(200)
    reader.join(60)
    assert not reader.is_alive()


def test_kubectl_logs(logging_pod: tuple[Cluster, Path, Any]) -> None:
    server, log, set_state = logging_pod
    log.write_text("hello\nworld\n")
    set_state({"terminated": {"exitCode": 0}}, phase="Succeeded")
    assert server.kubectl("logs", "p").stdout == "hello\nworld\n"
    assert server.kubectl("logs", "-f", "p", "--tail=1").stdout == "world\n"


def test_a_thousand_jobs_are_listed_fast_and_held_in_little_memory(tmp_path: Path) -> None:
    """CPU time of the server, so that a busy machine does not matter."""
    process = start(tmp_path)
    try:
        cluster = Cluster(tmp_path / "kubeconfig")
        for number in range(1000):
            body = pod(f"p-{number}", nodeName="n", restartPolicy="Never", hostname="h", subdomain="s")
            cluster.kube.create(_PODS, {**body, "metadata": {**body["metadata"], "namespace": "default"}})
        before = _cpu_s(process.pid)
        answer = cluster.http("GET", PODS)
        spent_s = _cpu_s(process.pid) - before
        assert len(answer.expect(200)["items"]) == 1000
        assert spent_s < 0.3
        assert before < 1000 / 100, "well over a hundred writes a CPU-second, the start included"
        assert _resident_mib(process.pid) < 150
    finally:
        process.terminate()
        process.wait(60)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def test_bookmarks_come_often_enough_for_kopf(server: Cluster) -> None:
    """kopf takes 70 s without an event for a dead connection."""
    from ptlocal.apiserver.http.watch_stream import BOOKMARK_S

    assert BOOKMARK_S <= 30
    started = time.monotonic()
    with server.watch(f"{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion=1&timeoutSeconds=3") as watch:
        events = watch.until_over()
    assert [kind for kind, _ in events] == ["BOOKMARK"]
    assert time.monotonic() - started >= 3
