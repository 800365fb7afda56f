"""The formula's verdict on many jobs, to the last bit: what a change of code must leave as it was.

`UPDATE_GOLDEN=1` writes the figures anew, for a change that means to move them.
"""

import json
import os

import pytest
from tests.builders.trainer.formula_figures import KEPT, figures

FIGURES = figures()


@pytest.mark.parametrize("name", FIGURES)
def test_the_formulas_figures_are_those_of_before(name: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        pytest.skip("written by the last test")
    assert FIGURES[name]() == json.loads(KEPT.read_text())[name]


def test_every_figure_that_is_kept_belongs_to_a_job() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        KEPT.write_text(json.dumps({name: figure() for name, figure in FIGURES.items()}, indent=1) + "\n")
    assert list(json.loads(KEPT.read_text())) == list(FIGURES)
