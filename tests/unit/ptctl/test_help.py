"""What `--help` says, and what it costs."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders.verbs import verbs

from ptctl.ui.command_line.lazy_group import LazyGroup

GOLDEN = Path(__file__).parent / "golden"
ALL = dict(verbs())


def help_of(path: tuple[str, ...]) -> str:
    context = None
    for length in range(1, len(path) + 1):
        context = ALL[path[:length]].make_context(
            path[length - 1], [], context, resilient_parsing=True, terminal_width=80
        )
    assert context is not None
    return ALL[path].get_help(context) + "\n"


def golden(path: tuple[str, ...]) -> Path:
    """Of a group in groups/, of a verb where its module is in ptctl.commands."""
    command = ALL[path]
    if isinstance(command, LazyGroup):
        return GOLDEN / "groups" / f"{path[-1]}.txt"
    assert command.callback is not None
    return GOLDEN / f"{command.callback.__module__.removeprefix('ptctl.commands.').replace('.', '/')}.txt"


@pytest.mark.parametrize("path", list(ALL), ids="-".join)
def test_golden_help_of_every_command(path: tuple[str, ...]) -> None:
    file = golden(path)
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(help_of(path))
    assert help_of(path) == file.read_text()


def test_there_is_no_golden_help_of_a_command_that_is_gone() -> None:
    assert set(GOLDEN.rglob("*.txt")) == {golden(path) for path in ALL}


@pytest.mark.parametrize("path", list(ALL), ids="-".join)
def test_every_help_has_examples(path: tuple[str, ...]) -> None:
    assert "\nExamples:\n  " in help_of(path)


@pytest.mark.parametrize("path", [path for path in ALL if isinstance(ALL[path], LazyGroup)], ids="-".join)
def test_the_line_in_the_table_is_the_first_sentence_of_the_command(path: tuple[str, ...]) -> None:
    group = ALL[path]
    assert isinstance(group, LazyGroup)
    for name, entry in group.table.items():
        text = " ".join((ALL[(*path, name)].help or "").split())
        assert text.startswith(entry.help), (name, text)


@pytest.mark.parametrize("path", list(ALL), ids="-".join)
def test_help_fits_a_terminal(path: tuple[str, ...]) -> None:
    before_examples = help_of(path).split("\nExamples:")[0]
    assert max(map(len, before_examples.splitlines())) <= 80


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    return done.stdout


LOADED = """
import json, sys
sys.argv = ["ptctl"]
from ptctl.__main__ import run
try:
    run({args!r})
finally:
    print("\\n" + json.dumps(sorted(sys.modules)))
"""

HEAVY = {
    "pydantic",
    "yaml",
    "rich",
    "kubernetes",
    "kopf",
    "aiohttp",
    "requests",
    "urllib3",
    "jax",
    "numpy",
    "matplotlib",
    "plotext",
    "cel_expr_python",
    "ptapi.spec",
    "ptkube.client",
    "http.client",
    "ssl",
    "asyncio",
    "jinja2",
    "difflib",
    "subprocess",
    "grpc",
    "google.auth",
}


@pytest.mark.parametrize(
    "args", [["--help"], *([group, "--help"] for group in ("workload", "cluster", "local"))], ids=" ".join
)
def test_help_of_a_group_imports_nothing_heavy(args: list[str]) -> None:
    modules = set(json.loads(run_python(LOADED.format(args=args)).splitlines()[-1]))
    assert modules & HEAVY == set()
    assert not any(name.startswith("ptctl.commands.workload.") for name in modules)


VERBS = [
    *(f"workload {verb}" for verb in ("create", "list", "logs", "wait")),
    "cluster create",
    "cluster delete",
    "init",
    "accelerators list",
]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_imports_neither_a_cluster_client_nor_the_models(verb: str) -> None:
    modules = set(json.loads(run_python(LOADED.format(args=[*verb.split(), "--help"])).splitlines()[-1]))
    assert modules & HEAVY == set()


@pytest.mark.parametrize(("words", "position"), [("ptctl wo", 1), ("ptctl workload list --filter-by-s", 3)])
def test_completion_of_verbs_and_flags_imports_nothing_heavy(words: str, position: int) -> None:
    env = {"_PTCTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    printed = run_python(f"import os; os.environ.update({env!r})\n" + LOADED.format(args=[])).splitlines()
    assert printed[0] in ("plain,workload", "plain,--filter-by-status")
    assert set(json.loads(printed[-1])) & HEAVY == set()


def test_listing_imports_no_models_of_jobs(tmp_path: Path) -> None:
    args = ["workload", "list", "--kubeconfig", str(tmp_path / "none")]
    modules = set(json.loads(run_python(LOADED.format(args=args)).splitlines()[-1]))
    assert "ptkube.client" in modules
    assert modules & {"rich", "ptapi.spec", "aiohttp", "kopf", "kubernetes.client.api.core_v1_api"} == set()


def cpu_seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ptctl", *words], capture_output=True, timeout=900, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def test_root_help_costs_less_than_150_ms_of_cpu() -> None:
    # The least of several: a busy machine adds, nothing takes away.
    assert min(cpu_seconds(["--help"]) for _ in range(7)) < 0.15
