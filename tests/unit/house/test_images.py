"""The images' build context: what the wheel needs is let through and copied; what a builder must not see is not."""

from __future__ import annotations

import tomllib

import pytest
from tests.builders import image_context
from tests.builders.image_context import ROOT, copies, is_let_through

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


@pytest.mark.parametrize(
    ("path", "ignore", "expected"),
    [
        ("manifests/demo/sft.yaml", "*", False),
        ("manifests/demo/sft.yaml", "*\n!manifests/demo", True),
        ("manifests/examples/sft.yaml", "*\n!manifests/demo", False),
        ("manifests/demo/sft.yaml", "!manifests/demo\n*", False),
        ("manifests/demo.yaml", "*\n!manifests/demo", False),
        ("api/ptapi/__pycache__/x.pyc", "*\n!api\n**/__pycache__", False),
        ("__pycache__/x.pyc", "**/__pycache__", False),
        ("a/b", "*/b", False),
        ("a/b/c", "*/c", True),
        ("a", "# a", True),
    ],
)
def test_dockerignore_is_read_as_docker_reads_it(path: str, ignore: str, expected: bool) -> None:
    assert is_let_through(path, ignore) is expected


@pytest.mark.parametrize("pattern", ["a?", "[ab]", "a/**", "/a", "a/", "!!a", r"a\ b"])
def test_pattern_that_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="are understood"):
        is_let_through("a", pattern)
