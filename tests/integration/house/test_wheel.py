"""The wheel as a user installs it."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True, timeout=900)
    return next(out.glob("posttrain-*.whl"))


def test_wheel_holds_the_six_packages_and_nothing_named_operator(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
    assert tops == {"ptapi", "ptkube", "ptoperator", "pttrainer", "ptctl", "ptlocal"}


def test_wheel_without_extras_validates_a_job(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, str(wheel)], check=True, timeout=900)
    example = ROOT / "manifests" / "examples" / "grpo-v6e-16.yaml"
    code = "import sys; from ptapi.load import load_job; print(load_job(open(sys.argv[1]).read()).spec.algorithm.kind)"
    done = subprocess.run([python, "-c", code, str(example)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "grpo\n"
