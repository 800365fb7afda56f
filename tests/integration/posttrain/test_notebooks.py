"""The notebooks, run from top to bottom by Jupyter's own client on the session's cluster."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tests.builders.trainer import quick, runs

NOTEBOOKS = Path(__file__).resolve().parents[3] / "examples" / "notebooks"

CHIPS = 'accelerator={"type": "cpu-1"},'
QUICK = [
    {"name": "XLA_FLAGS", "value": quick.FLAGS},
    {"name": "JAX_COMPILATION_CACHE_DIR", "value": runs.compiled()},
    {"name": "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "value": "0"},
]
"""The jobs' variables here: what XLA spends on compiling is most of these runs."""


def run(name: str, kubeconfig: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the cells show, text and HTML; a cell that raises fails."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("NOTEBOOK_FOLDER", str(folder))
    monkeypatch.setenv("XLA_FLAGS", quick.FLAGS)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells:
        cell.source = cell.source.replace(CHIPS, f"{CHIPS} env={QUICK},")
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(output.get("text") or "\n".join(output.data.values()) for output in outputs)


def test_a_first_job_shows_its_card_is_compared_and_answers(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run("first_job", kubeconfig, tmp_path, monkeypatch)
    for words in ("spec.model.uri: Qwen/Qwen3-0.6B", "<polyline", "step 40/40", "<td>fast</td>", "fast file://"):
        assert words in shown
    answer = shown.rsplit("export\n", 1)[1]
    assert "la" in answer, "the better run answers as it was taught"
    assert "ho" not in answer, "to this prompt"


def test_a_reward_of_the_notebook_is_learned(kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("grpo_reward", kubeconfig, tmp_path, monkeypatch)
    first, last = map(float, re.findall(r"share of vowels: (\S+) in .*, (\S+) in the last", shown)[0])
    assert last > first + 0.2
