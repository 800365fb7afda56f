"""`kubectl pt`: the entry points that kubectl runs, as the installed scripts run them."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ptctl.cli import COMMANDS
from ptctl.commands.workload import COMMANDS as VERBS
from ptctl.kubectl_plugin import words_of_ptctl

SCRIPTS = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]["scripts"]


def script(name: str, *words: str, kubeconfig: str) -> subprocess.CompletedProcess[str]:
    module, _, function = SCRIPTS[name].partition(":")
    code = f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"
    command = [sys.executable, "-c", code, *words]
    env = {"KUBECONFIG": kubeconfig, "PATH": "/usr/bin:/bin", "HOME": kubeconfig}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def test_kubectl_pt_list_is_workload_list(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    plugin = script("kubectl-pt", "list", kubeconfig=nowhere)
    same = script("ptctl", "workload", "list", kubeconfig=nowhere)
    assert (plugin.returncode, plugin.stdout, plugin.stderr) == (same.returncode, same.stdout, same.stderr)
    assert "kubeconfig" in plugin.stderr
    usage = script("kubectl-pt", "list", "--help", kubeconfig=nowhere)
    assert (usage.returncode, usage.stdout.splitlines()[0]) == (0, "Usage: ptctl workload list [OPTIONS]")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["list", "-A"], ["workload", "list", "-A"]),
        (["workload", "list"], ["workload", "list"]),
        (["cluster", "doctor"], ["cluster", "doctor"]),
        ([], ["workload"]),
        (["--help"], ["workload", "--help"]),
    ],
)
def test_words_after_kubectl_pt(words: list[str], line: list[str]) -> None:
    assert words_of_ptctl(words) == line
    assert not set(COMMANDS) & set(VERBS)


def test_kubectl_completes_verbs_and_flags(tmp_path: Path) -> None:
    def complete(*words: str) -> list[str]:
        done = script("kubectl_complete-pt", *words, kubeconfig=str(tmp_path / "none"))
        assert (done.returncode, done.stderr) == (0, "")
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    assert complete("sus") == ["suspend", ":4"]
    assert complete("list", "--filter-by-s") == ["--filter-by-status", ":4"]
    assert complete("logs", "") == [":4"]
