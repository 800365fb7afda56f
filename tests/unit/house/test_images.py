"""The images: their build context has what the wheel needs, and documents build them with the script's commands."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from scripts.images import build, commands, settings, smoke_test
from scripts.images.settings import ImageError, Settings
from tests.builders import image_context
from tests.builders.image_context import ROOT, copies, let_through

from ptapi.load import load_job

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


@pytest.mark.parametrize("target", build.TARGETS)
def test_an_image_has_the_labels_of_oci(target: str) -> None:
    """Those that a builder can know; `created` is in every image's configuration."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    own = "".join(stage for stage in stages if re.match(rf"\S+ AS (base|{target})\n", stage))
    labels = re.findall(r"org\.opencontainers\.image\.([\w.]+)=", own)
    wanted = "title description version revision source url documentation vendor licenses base.name base.digest"
    assert sorted(labels) == sorted(wanted.split())


def test_no_label_of_a_commit_comes_from_a_cache() -> None:
    """podman and buildah take a LABEL from it though its argument changed: `make images` compares, too."""
    assert len(re.findall(r"revision=\$\{REVISION\}", DOCKERFILE)) == len(build.TARGETS)
    assert len(re.findall(r'^ARG REVISION\nRUN : "\$\{REVISION\}"\nLABEL', DOCKERFILE, re.MULTILINE)) == len(
        build.TARGETS
    )


def test_the_base_image_is_pinned_by_version_and_digest() -> None:
    base = build.pinned_base()
    assert re.fullmatch(r"docker\.io/library/python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base.name)
    assert base.name.endswith(f"@{base.digest}")
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}", "base", *build.TARGETS}


def test_a_base_image_of_ones_own_is_named_by_digest() -> None:
    named = Settings(tool="false", python_image="r.example/python@sha256:" + "a" * 64)
    assert build.base_image(named) == commands.Base(named.python_image, "sha256:" + "a" * 64)
    with pytest.raises(
        ImageError, match=r"PYTHON_IMAGE: python:3\.11: expected NAME@sha256:…, or an image that false has"
    ):
        build.base_image(Settings(tool="false", python_image="python:3.11"))
    assert build.base_image(Settings(tool="false")) is None


@pytest.mark.parametrize("name", ["build_tools.txt", "bill_tools.txt", "audit_tools.txt"])
def test_tools_are_pinned_by_version_and_hash(name: str) -> None:
    text = (ROOT / "scripts/images" / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_the_wheel_is_built_with_the_versions_that_the_tests_passed_with() -> None:
    def versions(path: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / path).read_text(), re.MULTILINE))

    tested, building = versions("constraints.txt"), versions("scripts/images/build_tools.txt")
    assert "hatchling" in building
    assert {name: version for name, version in building.items() if tested.get(name, version) != version} == {}


def test_docker_lines_of_the_guide_are_what_make_images_runs() -> None:
    page = (ROOT / "docs/guides/install.md").read_text()
    lines = [shlex.split(line) for line in page.splitlines() if line.startswith("docker build")]
    for_docker = Settings(tool="docker", accelerator="tpu", registry="REGISTRY")
    assert lines == [commands.build_command(for_docker, target, "$(git rev-parse HEAD)") for target in build.TARGETS]


def test_first_tool_that_is_there_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="hint: install podman, buildah"):
        settings.read({})
    for tool in ("docker", "buildah", "podman"):
        (tmp_path / tool).touch(mode=0o755)
        assert settings.read({}).tool == tool
    assert settings.read({"IMAGE_TOOL": f"{tmp_path}/docker"}).kind == "docker"


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
    with pytest.raises(ImageError, match=f"{name}: {value}: expected"):
        settings.read({name: value})


def test_pip_configuration_is_a_secret_of_the_build_alone(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\n")
    for_buildah = Settings(tool="buildah", pip_config=str(config))
    words = commands.build_command(for_buildah, "operator", "")
    assert [word for word in words if "pip.conf" in word] == [f"id=pip.conf,src={config}"]
    assert words[words.index(f"id=pip.conf,src={config}") - 1] == "--secret"


def test_job_that_the_images_are_tried_with_is_accepted() -> None:
    assert load_job(smoke_test.JOB).spec.training.steps == 3


def test_a_package_that_nobody_pinned_fails_a_build() -> None:
    constraints = "# Versions\ncharset-normalizer==3.5.2\nkopf==1.45.2\n"
    installed = ["charset_normalizer==3.5.2 --hash=sha256:1", f"{PROJECT['name']}==0.1.0 --hash=sha256:2"]
    smoke_test.check_pins(installed, constraints)
    with pytest.raises(ImageError, match=r"constraints\.txt: lacks kopf==1\.46\.0, click==8\.5\.1; hint"):
        smoke_test.check_pins(["kopf==1.46.0 --hash=sha256:3", "click==8.5.1 --hash=sha256:4", *installed], constraints)


def test_step_that_fails_is_named_with_its_command() -> None:
    with pytest.raises(ImageError, match="build operator: exit code 3; the command: sh -c 'exit 3'"):
        commands.step("build operator", ["sh", "-c", "exit 3"])
