"""The generated reference pages describe the present."""

from pathlib import Path

import pytest
from tests.builders.scripts import load_script

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "name", ["spec.md", "status.md", "failures.md", "accelerators.md", "xpk-flags.md", "resume.md"]
)
def test_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") == load_script(
        "scripts/make_reference.py"
    ).pages()[name], "hint: make docs"


def test_index_of_messages_is_up_to_date_and_finds_those_of_every_package() -> None:
    index = load_script("scripts/make_message_index.py")
    page = index.page()
    assert index.PAGE.read_text(encoding="utf-8") == page, "hint: make docs"
    for line in (
        "| node pool ‹pool› exists and belongs to another owner | delete that node pool |",
        "| the trainer needs JAX, which is not installed | pip install 'posttrain\\[trainer-cpu\\]' |",
    ):
        assert line in page


def test_every_field_of_the_shortest_job_has_its_line() -> None:
    page = load_script("scripts/make_reference.py").pages()["spec.md"]
    for line in ("| `maxNewTokens` | a whole number from 1", "## spec.rewards[]", "| `groupSize` |", "not supported"):
        assert line.lower() in page.lower()
