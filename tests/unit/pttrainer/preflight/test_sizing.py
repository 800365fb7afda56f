"""The sizing guide: its cells are the formula's, and its committed verdicts those of the jobs beside them."""

import json
from pathlib import Path

import pytest
from tests.builders.scripts import load_script

from ptapi.load import load_job
from pttrainer.preflight.memory.formula import memory
from pttrainer.preflight.shapes.job_shapes import shapes_of

sizing = load_script("scripts/make_sizing.py")
PAGE = sizing.PAGE.read_text()


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-0.6b", "gemma3-4b"])
def test_a_line_of_the_page_is_what_the_formula_says_today(model: str) -> None:
    line = sizing.table(sizing.METHODS[0], (model,)).splitlines()[2]
    assert line in PAGE.partition("## SFT, LoRA")[0]


def test_the_page_has_every_model_with_every_method_and_the_committed_verdicts() -> None:
    for method in sizing.METHODS:
        part = PAGE.partition(f"## {method.name}\n")[2].partition("\n## ")[0]
        assert [row.split("|")[1].strip() for row in part.splitlines() if row.startswith("| ")][2:] == list(
            sizing.MODELS
        )
    assert sizing.demonstrations() in PAGE


@pytest.mark.parametrize("file", sorted(sizing.VERDICTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_committed_verdict_is_of_the_job_beside_it(file: Path) -> None:
    verdict = json.loads(file.with_suffix(".json").read_text())
    of = shapes_of(load_job(file.read_text()).spec)
    computed = next(one for one in verdict["programs"] if one["stage"] == "formula")
    assert memory(of).program.arguments == computed["arguments"]
    assert verdict["chips"] == of.slice.total_chips == 64
    for one in verdict["programs"][1:]:
        if one["name"] == "train step":
            assert computed["peak"] == pytest.approx(one["peak"], rel=0.10)
