"""From labelled rows and preferences to single answers, and to prompts with the answers to others."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pttrainer.data.test_preference_pairs import CHAT, NO, PROMPT, USER, YES, shown

from ptapi.spec import DataSource
from pttrainer.data import rows
from pttrainer.data.preferences import unpaired
from pttrainer.data.preferences.unpaired import LabelledAnswers
from pttrainer.errors import DataError


def made(tmp_path: Path, *lines: dict[str, Any], label: str | None = None, length: int = 64) -> LabelledAnswers:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    read = rows.load(DataSource(uri=f"file://{tmp_path}/rows.jsonl"), "spec.data.train", None)
    return unpaired.make(read, CHAT, length, label)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1+1?", "completion": "2", "label": True},
        {"prompt": "1+1?", "completion": "2", "label": 1},
        {"prompt": "1+1?", "completion": "2", "label": "True"},
        {"prompt": [USER], "completion": [YES], "label": True},
        {"messages": [USER, YES], "label": True},
        {"question": "1+1?", "answer": "2", "label": "1"},
    ],
)
def test_every_form_of_a_row_becomes_the_same_answer(tmp_path: Path, row: dict[str, Any]) -> None:
    labelled = made(tmp_path, row, {**row, "label": False})
    assert [shown(example) for example in labelled.examples] == [(PROMPT, "2<|end|>")] * 2
    assert [answer.is_desirable for answer in labelled.answers] == [True, False]


def test_a_preference_is_a_good_answer_and_a_bad_one(tmp_path: Path) -> None:
    labelled = made(tmp_path, {"chosen": [USER, YES], "rejected": [USER, NO]})
    assert [shown(example)[1] for example in labelled.examples] == ["2<|end|>", "33<|end|>"]
    assert (labelled.desirable, len(labelled.answers)) == (1, 2)


def test_a_csv_file_says_true_and_false_and_its_column_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,completion,good\n1?,2,TRUE\n3?,4,false\n")
    read = rows.load(DataSource(uri=f"file://{tmp_path}/rows.csv"), "spec.data.train", None)
    assert [one.is_desirable for one in unpaired.make(read, CHAT, 64, "good").answers] == [True, False]


def test_a_prompt_is_continued_by_the_answer_to_another_one(tmp_path: Path) -> None:
    lines = [{"prompt": f"{i}?", "completion": "y" * (i + 1), "label": True} for i in range(3)]
    examples = unpaired.mismatched(made(tmp_path, *lines).answers, [2, 0, 1], CHAT, 64)
    texts = [(PROMPT.replace("1+1", str(i)), f"{answer}<|end|>") for i, answer in enumerate(("yyy", "y", "yy"))]
    assert [shown(example) for example in examples] == texts


def test_a_long_prompt_loses_its_beginning_and_the_answer_stays(tmp_path: Path) -> None:
    labelled = made(tmp_path, {"prompt": "?" * 99, "completion": "yes", "label": 0}, length=16)
    assert labelled.cut == 1
    assert shown(labelled.examples[0])[1] == "yes<|end|>"
    assert labelled.examples[0].length == 16


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"prompt": "?", "completion": "!"},
            "no column 'label'; it has: prompt, completion; accepted for kto: a label",
        ),
        (
            {"prompt": "?", "completion": "!", "label": "good"},
            "column 'label' is 'good'; accepted: true or false, 1 or",
        ),
        ({"prompt": "?", "completion": "!", "label": None}, "column 'label' is None; accepted: true or false"),
        ({"messages": [YES], "label": True}, "no prompt before the answer"),
        ({"messages": [USER], "label": True}, "the assistant says nothing after the prompt"),
        ({"text": "!", "label": True}, "rows are text; accepted for kto: prompt-completion"),
    ],
)
def test_rows_without_prompt_answer_or_label_are_refused_by_name(
    tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError) as caught:
        made(tmp_path, row)
    assert words in str(caught.value)
