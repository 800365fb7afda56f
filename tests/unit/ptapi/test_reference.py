"""The generated reference pages describe the present."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def make_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "scripts" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["spec.md", "status.md", "failures.md", "accelerators.md"])
def test_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") == make_reference().pages()[name], (
        "hint: make docs"
    )


def test_every_field_of_the_shortest_job_has_its_line() -> None:
    page = make_reference().pages()["spec.md"]
    for line in ("| `maxNewTokens` | a whole number from 1", "## spec.rewards[]", "| `groupSize` |", "not supported"):
        assert line.lower() in page.lower()
