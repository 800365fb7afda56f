"""The names that completion offers follow what ptctl does, and never another cluster's."""

import os
import time
from pathlib import Path

import pytest
from tests.unit.ptctl.conftest import FakeKube, Invoke

from ptctl.ui import name_cache
from ptctl.ui.app import Target
from ptkube.resources import POSTTRAINJOBS

HERE = Target()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "config").touch()
    return tmp_path / "home"


def never() -> list[str]:
    raise AssertionError("the cluster is asked")


def test_names_follow_list_create_and_delete(invoke: Invoke, kube: FakeKube, job_file: Path) -> None:
    for name in ("llama-a", "llama-b"):
        kube.put(POSTTRAINJOBS, {"metadata": {"name": name}, "spec": {}})
    assert invoke("workload", "list").code == 0
    assert name_cache.complete(HERE, "llama", never) == ["llama-a", "llama-b"]
    assert invoke("workload", "create", "-f", str(job_file), "--dry-run=server").code == 0
    assert "llama-gsm8k" not in name_cache.complete(HERE, "llama", never)
    assert invoke("workload", "create", "-f", str(job_file)).code == 0
    assert invoke("workload", "delete", "llama-a").code == 0
    assert name_cache.complete(HERE, "llama", never) == ["llama-b", "llama-gsm8k"]
    assert name_cache.complete(Target(namespace="other"), "llama", list) == []


def test_an_old_list_without_a_match_is_asked_for_anew(home: Path) -> None:
    name_cache.remember(HERE, ["old"])
    (file,) = (home / "job-names").iterdir()
    os.utime(file, (time.time() - 3600,) * 2)
    assert name_cache.complete(HERE, "new", lambda: ["new-1"]) == ["new-1"]


def test_a_changed_kubeconfig_has_names_of_its_own(tmp_path: Path) -> None:
    name_cache.remember(HERE, ["one"])
    os.utime(tmp_path / "config", (0, 0))
    assert name_cache.complete(HERE, "", lambda: ["two"]) == ["two"]


def test_a_directory_that_cannot_be_written_is_no_error(home: Path) -> None:
    home.touch()
    name_cache.remember(HERE, ["one"])
    assert name_cache.complete(HERE, "", lambda: ["two"]) == ["two"]
