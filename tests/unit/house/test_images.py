"""The images: their build context has what the wheel needs, and documents build them with the script's commands."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from tests.builders import image_context
from tests.builders.image_context import ROOT, copies, let_through
from tests.builders.scripts import load_script

from ptapi.load import load_job

script = load_script("scripts/build_images.py")

DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_file_of_the_wheel_is_copied_to_where_hatch_looks_for_it() -> None:
    copied = image_context.copied(DOCKERFILE, IGNORE)
    wanted = ["pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *image_context.included()]
    assert [file for file in wanted if copied.get(file) != file] == []


def test_every_copied_path_has_files_in_the_build_context() -> None:
    copied = image_context.copied(DOCKERFILE, IGNORE)
    assert [
        source
        for source, _ in copies(DOCKERFILE, "wheel")
        if not any(f"{file}/".startswith(f"{source}/") for file in copied)
    ] == []


@pytest.mark.parametrize("wrong", ["api\n", "*\n!api?\n**/__pycache__", "*\n!/api\n**/__pycache__", "*\n!api"])
def test_dockerignore_of_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        let_through(wrong)


def test_no_step_mounts_another_stage() -> None:
    """podman and buildah give such a step a cached stage without files, or leave it out though the stage changed."""
    assert re.findall(r"--mount=\S*from=\S*", DOCKERFILE) == []


def test_images_are_labelled_with_the_version_of_the_project() -> None:
    assert re.findall(r"image\.version=(\S+)", DOCKERFILE) == [PROJECT["version"]]


def test_docker_lines_of_the_guide_are_what_make_images_runs() -> None:
    page = (ROOT / "docs/guides/install.md").read_text()
    lines = [shlex.split(line) for line in page.splitlines() if line.startswith("docker build")]
    settings = script.Settings(tool="docker", accelerator="tpu", registry="REGISTRY")
    assert lines == [script.build_command(settings, target, "$(git rev-parse HEAD)") for target in script.TARGETS]


def test_first_tool_that_is_there_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(script.ImageError, match="hint: install podman, buildah"):
        script.read({})
    for tool in ("docker", "buildah", "podman"):
        (tmp_path / tool).touch(mode=0o755)
        assert script.read({}).tool == tool
    assert script.read({"IMAGE_TOOL": f"{tmp_path}/docker"}).kind == "docker"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACCELERATOR", "gpu"),
        ("IMAGE_TOOL", "kaniko"),
        ("PIP_CONFIG_FILE", "/nowhere/pip.conf"),
        ("IMAGE_RUN_FLAGS", "--label 'a"),
    ],
)
def test_wrong_variable_is_named_with_its_value(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "podman").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(script.ImageError, match=f"{name}: {value}: expected"):
        script.read({name: value})


def test_pip_configuration_is_a_secret_of_the_build_alone(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\n")
    settings = script.Settings(tool="buildah", pip_config=str(config))
    words = script.build_command(settings, "operator", "")
    assert [word for word in words if "pip.conf" in word] == [f"id=pip.conf,src={config}"]
    assert words[words.index(f"id=pip.conf,src={config}") - 1] == "--secret"


def test_job_that_the_images_are_tried_with_is_accepted() -> None:
    assert load_job(script.JOB).spec.training.steps == 3


def test_step_that_fails_is_named_with_its_command() -> None:
    with pytest.raises(script.ImageError, match="build operator: exit code 3; the command: sh -c 'exit 3'"):
        script.step("build operator", ["sh", "-c", "exit 3"])
