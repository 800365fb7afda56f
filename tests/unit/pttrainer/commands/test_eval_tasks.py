"""The builtin tasks of `eval`: public data sets' rows, what the model is asked, and which answers count."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from tests.builders.pictures import drawn, encoded

from ptapi.spec import DataSource
from pttrainer.commands.model.eval_tasks import TASKS, prepared
from pttrainer.data.rows import load
from pttrainer.data.sources.images import decoding
from pttrainer.errors import DataError
from pttrainer.rewards.builtin import choice, gsm8k
from pttrainer.rewards.builtin.code import code_reward
from pttrainer.rollout.evaluation import answer_metrics

GSM8K = {"question": "What is 6 times 7?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"}
MMLU = {"question": "Which is a fruit?", "choices": ["stone", "pear"], "answer": 1, "subject": "food"}
ARC = {"question": "Which is a fruit?", "choices": {"text": ["stone", "pear"], "label": ["1", "2"]}, "answerKey": "2"}
MBPP = {"text": "Write add(a, b).", "code": "def add(a, b): return a + b", "test_list": ["assert add(1, 2) == 3"]}
HUMAN_EVAL = {
    "prompt": "def add(a, b):\n",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
PROGRAM = "```python\ndef add(a, b):\n    return a + b\n```"


def rows(tmp_path: Path, task: str, *records: dict[str, Any], labels: tuple[str, ...] = (), **options: Any) -> Any:
    """The rows that the evaluation reads."""
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    source = DataSource(uri=file.as_uri(), limit=options.get("limit"))
    uri = prepared(TASKS[task], source, labels, options.get("instruction"), tmp_path)
    return load(DataSource(uri=uri), "data").rows


def prompt(row: Any) -> str:
    return str(row.prompt[0]["content"])


def test_gsm8k_compares_the_number_after_the_marker(tmp_path: Path) -> None:
    [row] = rows(tmp_path, "gsm8k", GSM8K, GSM8K, limit=1)
    assert prompt(row).startswith("What is 6 times 7?\n\nSolve it step by step.")
    fields = {**row.fields, "answer": row.answer}
    assert gsm8k.reward("", "It is 6 * 7.\n#### 42", fields) == 1.0
    assert gsm8k.reward("", "#### 41", fields) == 0.0


@pytest.mark.parametrize("record", [MMLU, ARC, {"question": "Which is a fruit?\nA. stone\nB. pear", "answer": "B"}])
def test_choices_get_letters_whatever_the_data_set_calls_them(tmp_path: Path, record: dict[str, Any]) -> None:
    [row] = rows(tmp_path, "choice", record)
    assert prompt(row).startswith("Which is a fruit?\nA. stone\nB. pear\n\nEnd with")
    assert choice.reward("", "A pear is one. Answer: B", {"answer": row.answer}) == 1.0
    assert choice.reward("", "Answer: A", {"answer": row.answer}) == 0.0


def test_labels_are_numbers_or_words_and_stand_in_the_prompt(tmp_path: Path) -> None:
    numbered = rows(tmp_path, "labels", {"text": "fine", "label": 1}, {"text": "bad", "label": 0}, labels=("no", "yes"))
    assert [row.answer for row in numbered] == ["yes", "no"]
    named = rows(tmp_path, "labels", {"sentence": "fine", "label": "yes"}, {"sentence": "bad", "label": "no"})
    assert [prompt(row) for row in named] == [prompt(row) for row in numbered]
    assert prompt(named[0]).endswith("these labels and nothing else: no, yes")
    measured = answer_metrics.measure(TASKS["labels"].answers, ["yes", "yes"], ["yes", "no"], ["no", "yes"])
    assert measured == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}


def test_pictures_may_be_plain_bytes_and_stand_in_any_directory(tmp_path: Path) -> None:
    home = tmp_path / "run #1, 50%"
    home.mkdir()
    file, picture = home / "data.parquet", encoded(drawn(3, 2))
    parquet.write_table(pyarrow.table({"image": [picture], "thumbnail": [picture], "label": ["cat"]}), file)
    uri = prepared(TASKS["labels"], DataSource(uri=f"file://{file}"), ("cat",), None, home)
    [row] = load(DataSource(uri=uri), "data").rows
    assert decoding.picture(row.images[0]).size == (3, 2)
    assert "thumbnail" not in row.fields


@pytest.mark.parametrize("record", [MBPP, HUMAN_EVAL])
def test_programs_are_run_against_the_tests_of_the_row(tmp_path: Path, record: dict[str, Any]) -> None:
    [row] = rows(tmp_path, "code", record)
    assert code_reward(10.0)("", PROGRAM, row.fields) == 1.0
    assert code_reward(10.0)("", PROGRAM.replace("+", "-"), row.fields) == 0.0


def test_an_instruction_of_the_user_replaces_that_of_the_task(tmp_path: Path) -> None:
    [row] = rows(tmp_path, "gsm8k", GSM8K, instruction="")
    assert prompt(row) == GSM8K["question"]


@pytest.mark.parametrize(
    ("task", "record", "message"),
    [
        ("gsm8k", {"text": "hi"}, "line 1.*no column question or prompt or problem; it has: text"),
        ("choice", {**MMLU, "answer": 2}, "answer: 2: accepted: a number from 0 to 1, or one of A, B"),
        ("labels", {"text": "fine", "label": 2}, "label: 2: accepted: 0 to 1, the place in --label"),
    ],
)
def test_a_row_of_another_kind_is_refused_with_its_columns(
    tmp_path: Path, task: str, record: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        rows(tmp_path, task, record, labels=("no", "yes"))


def test_labels_of_pictures_need_no_text_and_paths_stay_those_of_the_data(tmp_path: Path) -> None:
    given = {"image": "a.png", "label": "cat"}, {"image": "data:image/png;base64,AQID", "label": 1, "text": "This?"}
    first, second = rows(tmp_path, "labels", *given, labels=("cat", "dog"))
    assert first.images[0].uri == (tmp_path / "a.png").as_uri()
    assert (second.images[0].content, second.answer) == (b"\x01\x02\x03", "dog")
    words = "Answer with one of these labels and nothing else: cat, dog"
    assert [message["content"][-1]["text"] for row in (first, second) for message in row.prompt] == [
        words,
        f"This?\n\n{words}",
    ]
