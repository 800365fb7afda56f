"""Rows: what is recognised, and errors for rows that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from ptapi.spec import Columns, DataSource
from pttrainer.data import rows
from pttrainer.errors import DataError


def source(tmp_path: Path, *lines: Any, **fields: Any) -> DataSource:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / "rows.jsonl").write_text(text)
    return DataSource(uri=f"file://{tmp_path}/rows.jsonl", **fields)


def load(data: DataSource, system: str | None = None) -> rows.Rows:
    return rows.load(data, "spec.data.train", system)


TURNS = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


@pytest.mark.parametrize(
    ("row", "form"),
    [
        ({"messages": TURNS}, "messages"),
        ({"conversations": TURNS}, "messages"),
        ({"prompt": "1+1?", "completion": "2"}, "prompt-completion"),
        ({"instruction": "1+1?", "output": "2"}, "prompt-completion"),
        ({"question": "1+1?", "answer": "2"}, "prompt-answer"),
        ({"prompt": "1+1?", "chosen": "2", "rejected": "3"}, "preference"),
        ({"": "a cell without a name", "chosen": "2", "rejected": "3"}, "preference"),
        ({"text": "1+1=2"}, "text"),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, "prompt-completion"),
        ({"prompt": "1+1?", "topic": "sums"}, "prompt-only"),
        ({"prompt": TURNS[:1]}, "prompt-only"),
    ],
)
def test_formats_are_told_apart_by_their_columns(tmp_path: Path, row: dict[str, Any], form: str) -> None:
    loaded = load(source(tmp_path, row))
    assert loaded.format == form
    if form not in ("text", "preference"):
        assert list(loaded.rows[0].messages) == TURNS[: 1 if form == "prompt-only" else 2]


def test_named_columns_win_over_usual_ones(tmp_path: Path) -> None:
    row = {"prompt": "no", "completion": "no", "ask": "1+1?", "say": "2"}
    loaded = load(source(tmp_path, row, columns=Columns(prompt="ask", completion="say")))
    assert list(loaded.rows[0].messages) == TURNS


def test_a_named_format_wins_over_detection(tmp_path: Path) -> None:
    row = {"text": "plain", "prompt": "a", "completion": "b"}
    assert load(source(tmp_path, row, format="text")).rows[0].text == "plain"


def test_the_gold_answer_is_kept_beside_a_conversation(tmp_path: Path) -> None:
    row = load(source(tmp_path, {"question": "1+1?", "answer": 2})).rows[0]
    assert row.answer == "2"
    assert list(row.prompt) == TURNS[:1]


def test_the_system_prompt_does_not_replace_one_that_is_there(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "own"}, *TURNS]
    loaded = load(source(tmp_path, {"messages": TURNS}, {"messages": own}), "ours")
    assert [row.messages[0]["content"] for row in loaded.rows] == ["ours", "own"]


def test_limit_stops_reading_so_later_lines_may_be_broken(tmp_path: Path) -> None:
    assert len(load(source(tmp_path, {"text": "a"}, {"text": "b"}, "{", limit=2)).rows) == 2


def test_blank_lines_are_skipped_and_lines_counted_as_an_editor_does(tmp_path: Path) -> None:
    assert [row.line for row in load(source(tmp_path, {"text": "a"}, "", {"text": "b"})).rows] == [1, 3]


BAD: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "empty file": ([], {}, "is empty; accepted: JSON Lines"),
    "only blank lines": (["", "  "], {}, "is empty"),
    "invalid JSON": ([{"text": "a"}, {"text": "b"}, '{"text": '], {}, "rows.jsonl line 3: is not valid JSON"),
    "not an object": (['["a"]'], {}, "line 1: is a list; accepted: a JSON object"),
    "unknown columns": ([{"foo": 1, "bar": 2}], {},
     "format not recognised from the columns foo, bar; accepted: messages"),
    "no columns": ([{}], {}, r"from the columns \(none\)"),
    "a later row lacks a column": ([{"text": "a"}, {"txt": "b"}], {}, "line 2: no column 'text'; it has: txt"),
    "named column that is not there": ([{"prompt": "a", "completion": "b"}], {"columns": Columns(prompt="ask")},
     r"no column 'ask' \(data.columns.prompt\); it has: prompt, completion"),
    "named format that does not fit": ([{"prompt": "a"}], {"format": "prompt-completion"},
     r"format prompt-completion needs the column completion \(usually completion or response or output\)"),
    "text that is a number": ([{"text": 3}], {}, "column 'text': is a number; accepted: a string"),
    "text that is null": ([{"text": None}], {}, "column 'text': is null; accepted: a string"),
    "messages that are text": ([{"messages": "hi"}], {}, "column 'messages': is a string; accepted: a list"),
    "no messages": ([{"messages": []}], {}, "is an empty list; accepted: a list of {role, content}"),
    "message without content": ([{"messages": [{"role": "user"}]}], {}, "message 0: accepted: {role, content}"),
    "unknown role": ([{"messages": [{"role": "human", "content": "hi"}]}], {},
     "role 'human'; accepted: system, user, assistant, tool"),
    "prompt that is null": ([{"prompt": None, "completion": "b"}], {}, "column 'prompt': is null; accepted: a string"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_rows_are_refused_with_file_line_and_what_is_accepted(tmp_path: Path, name: str) -> None:
    lines, fields, message = BAD[name]
    with pytest.raises(DataError, match=message) as refused:
        load(source(tmp_path, *lines, **fields))
    assert "rows.jsonl" in str(refused.value)


@pytest.mark.parametrize(
    ("path", "message"), [("missing.jsonl", "no such file"), ("", "no data files in this directory; accepted: .jsonl")]
)
def test_files_that_cannot_be_read_name_the_field(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(DataError, match=f"spec.data.train.uri: file://.*{message}"):
        load(DataSource(uri=f"file://{tmp_path}/{path}".rstrip("/")))


def test_bytes_that_are_not_utf8_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(DataError, match="line 2: is not UTF-8"):
        load(DataSource(uri=f"file://{tmp_path}/rows.jsonl"))
