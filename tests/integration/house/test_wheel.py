"""The wheel as a user and the images install it, built from the files that the Dockerfile copies, and no others."""

import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from tests.builders import image_context

from posttrain_vllm import BACKEND

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("dist")
    image_context.lay_out(image_context.copied_now(), source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, timeout=900)
    return next(out.glob("posttrain-*.whl"))


def test_wheel_holds_the_eight_packages_and_nothing_named_operator(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
    assert tops == {"ptapi", "posttrain_vllm", "ptkube", "ptoperator", "pttrainer", "ptctl", "ptlocal", "posttrain"}


def test_wheel_gives_vllm_the_backend_over_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        entry_points = ConfigParser()
        entry_points.read_string(archive.read(name).decode())
    assert dict(entry_points["vllm.general_plugins"]) == {BACKEND: "posttrain_vllm:register"}


def test_wheel_of_the_images_holds_every_file_that_one_of_the_checkout_does(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    made = {name for name in names if ".dist-info/" in name}
    assert names - made == set(image_context.included().values())
    assert {"ptctl/demo/job_templates/sft.yaml", "ptctl/demo/job_templates/grpo.yaml"} <= names


def test_wheel_without_extras_validates_a_job(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, str(wheel)], check=True, timeout=900)
    example = ROOT / "manifests" / "examples" / "grpo-v6e-16.yaml"
    code = "import sys; from ptapi.load import load_job; print(load_job(open(sys.argv[1]).read()).spec.algorithm.kind)"
    done = subprocess.run([python, "-c", code, str(example)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "grpo\n"
