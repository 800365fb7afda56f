"""ptctl's verbs against an API server, embedded or real: what is sent, stored and shown. Nothing is trained here."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptkube.resources import POSTTRAINJOBS

Run = Callable[..., subprocess.CompletedProcess[str]]
Make = Callable[..., str]


def created(ptctl: Run, text: str) -> None:
    done = ptctl("workload", "create", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr


def test_create_list_get_delete(ptctl: Run, job: Make) -> None:
    for name in ("b", "a"):
        created(ptctl, job(name))
    listed = ptctl("workload", "list").stdout.splitlines()
    rows = [line.split() for line in listed[1:]]
    assert [(row[0], row[2], row[3]) for row in rows] == [("a", "sft", "cpu-1"), ("b", "sft", "cpu-1")]
    body = yaml.safe_load(ptctl("workload", "get", "a", "-o", "yaml").stdout)
    assert body["spec"]["training"]["steps"] == 3
    assert body["spec"]["runPolicy"]["maxRestarts"] == 3, "the server filled in the default"
    assert "managedFields" not in body["metadata"]
    assert ptctl("workload", "delete", "a", "--wait").returncode == 0
    assert ptctl("workload", "list", "-o", "name").stdout == "posttrainjob.posttrain.dev/b\n"
    assert ptctl("workload", "delete", "--all", "-l", "team=x", "--wait").returncode == 0
    assert ptctl("workload", "list").stderr.startswith("no jobs found")


def test_server_dry_run_stores_nothing_and_shows_the_defaults(ptctl: Run, job: Make) -> None:
    done = ptctl("workload", "create", "-f", "-", "--dry-run=server", "-o", "json", stdin=job("a"))
    assert json.loads(done.stdout)["spec"]["checkpoint"]["everySteps"] == 50
    assert ptctl("workload", "get", "a").returncode == 3


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_client_dry_run_is_what_kubectl_can_apply(kubeconfig: Path, ptctl: Run, job: Make, namespace: str) -> None:
    printed = ptctl("workload", "create", "-f", "-", "--dry-run=client", "-o", "yaml", stdin=job("a")).stdout
    done = subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), "apply", "-n", namespace, "-f", "-"],
        input=printed,
        text=True,
        capture_output=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert ptctl("workload", "get", "a", "-o", "name").returncode == 0


def test_a_namespace_that_does_not_exist_exits_3(kubeconfig: Path, job: Make) -> None:
    words = ["workload", "create", "-f", "-", "-n", "no-such-namespace", "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(
        [sys.executable, "-m", "ptctl", *words], input=job("a"), text=True, capture_output=True, timeout=900
    )
    assert (done.returncode, "no-such-namespace" in done.stderr) == (3, True)


def test_suspend_and_resume_change_the_stored_job(cluster: Any, ptctl: Run, job: Make, namespace: str) -> None:
    def is_suspended() -> bool:
        return bool(cluster.kube.get(POSTTRAINJOBS, "a", namespace)["spec"]["runPolicy"]["suspend"])

    created(ptctl, job("a"))
    assert "(unchanged)" in ptctl("workload", "suspend", "a").stdout
    assert ptctl("workload", "wait", "a", "--for", "suspended", "--timeout", "30").returncode == 0
    assert ptctl("workload", "resume", "a").returncode == 0
    assert not is_suspended()
    assert ptctl("workload", "suspend", "a").returncode == 0
    assert is_suspended()


def test_watch_shows_changes_until_it_is_interrupted(
    cluster: Any, job: Make, ptctl: Run, ptctl_command: Callable[..., list[str]], namespace: str
) -> None:
    created(ptctl, job("a"))
    with subprocess.Popen(ptctl_command("workload", "list", "-w"), text=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline().startswith("NAME")
            assert child.stdout.readline().split()[0] == "a"
            created(ptctl, job("later"))
            while not (line := child.stdout.readline()).startswith("later"):
                assert line
            cluster.kube.delete(POSTTRAINJOBS, "later", namespace)
            while (line := child.stdout.readline()).split()[:2] != ["later", "Deleted"]:
                assert line
        finally:
            child.kill()


def test_wrong_credentials_exit_4(kubeconfig: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": "wrong"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    words = ["workload", "list", "--kubeconfig", str(tmp_path / "config")]
    done = subprocess.run([sys.executable, "-m", "ptctl", *words], text=True, capture_output=True, timeout=900)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
