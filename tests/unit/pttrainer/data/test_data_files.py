"""Data files: the same rows whatever they are written in, which files are chosen, errors for broken ones."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from ptapi.spec import Columns, DataSource
from pttrainer.data import rows
from pttrainer.data.sources import files, selection
from pttrainer.errors import DataError
from pttrainer.runtime.io import storage

ROWS = [{"question": f"{i} + 1, “how” many?\nSay.", "answer": str(i + 1)} for i in range(5)]


def as_lines(records: list[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(row) for row in records).encode()


def as_list(records: list[dict[str, Any]]) -> bytes:
    return json.dumps(records, indent=1, ensure_ascii=False).encode()


def as_text(delimiter: str) -> Callable[[list[dict[str, Any]]], bytes]:
    def write(records: list[dict[str, Any]]) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(records[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue().encode()

    return write


def as_parquet(records: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(records), out, row_group_size=2)
    return out.getvalue()


def as_arrow(records: list[dict[str, Any]]) -> bytes:
    table = pyarrow.Table.from_pylist(records)
    out = io.BytesIO()
    with pyarrow.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


WRITERS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    ".jsonl": as_lines,
    ".json": as_list,
    ".csv": as_text(","),
    ".tsv": as_text("\t"),
    ".parquet": as_parquet,
    ".arrow": as_arrow,
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
}


def load(uri: str | Path, skip_bad: bool = False, **fields: Any) -> rows.Rows:
    source = DataSource(uri=uri if isinstance(uri, str) else f"file://{uri}", **fields)
    return rows.load(source, "spec.data.train", skip_bad=skip_bad)


def texts(loaded: rows.Rows) -> list[str]:
    return [str(row.text) for row in loaded.rows]


def write_texts(path: Path, *contents: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_lines([{"text": text} for text in contents]))


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str, packed: str) -> None:
    path = tmp_path / f"rows{suffix}{packed}"
    path.write_bytes(PACKERS[packed](WRITERS[suffix](ROWS)))
    loaded = load(path)
    assert [dict(row.fields) for row in loaded.rows] == ROWS
    assert loaded.format == "prompt-answer"
    assert [row.answer for row in load(path, limit=3).rows] == ["1", "2", "3"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".arrow"])
def test_conversations_are_the_same_in_files_of_columns(tmp_path: Path, suffix: str) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(WRITERS[suffix]([{"messages": turns, "tools": '[{"type": "function"}]'}]))
    row = load(path).rows[0]
    assert list(row.messages) == turns
    assert row.tools == [{"type": "function"}]


def test_conversations_in_csv_are_json_text(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    (tmp_path / "a.csv").write_bytes(as_text(",")([{"messages": json.dumps(turns)}]))
    assert list(load(tmp_path / "a.csv").rows[0].messages) == turns


def test_older_forms_of_conversations_are_read(tmp_path: Path) -> None:
    older = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]},
        {"role": "assistant", "content": "2"},
    ]
    (tmp_path / "a.jsonl").write_bytes(as_lines([{"conversations": older}, {"conversations": parts}]))
    first, second = load(tmp_path / "a.jsonl").rows
    assert [dict(message) for message in first.messages] == [dict(message) for message in second.messages]


def test_json_lines_in_a_json_file_are_read_as_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(as_lines(ROWS))
    assert len(load(tmp_path / "rows.json").rows) == 5


def test_a_pattern_names_files_in_order_and_each_row_knows_its_own(tmp_path: Path) -> None:
    for name, text in (("part-1", "b"), ("part-0", "a"), ("other", "c")):
        write_texts(tmp_path / f"{name}.jsonl", text)
    loaded = load(tmp_path / "part-?.jsonl")
    assert texts(loaded) == ["a", "b"]
    assert loaded.rows[1].where == f"file://{tmp_path}/part-1.jsonl line 1"
    assert len(load(tmp_path / "*.jsonl").rows) == len(load(tmp_path / "**" / "*.jsonl").rows) == 3
    with pytest.raises(DataError, match="no file matches the pattern"):
        load(tmp_path / "*.csv")


def test_a_name_with_brackets_is_a_name_where_it_is_there(tmp_path: Path) -> None:
    write_texts(tmp_path / "a[1].jsonl", "a")
    assert texts(load(tmp_path / "a[1].jsonl")) == ["a"]


def test_a_directory_is_all_its_data_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "deep/c.jsonl", ".hidden.jsonl"):
        write_texts(tmp_path / name, name)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl.gz").read_bytes()))
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert texts(load(tmp_path)) == ["a.jsonl.gz", "b.jsonl", "deep/c.jsonl"]


def test_two_splits_or_two_formats_are_never_mixed_unasked(tmp_path: Path) -> None:
    write_texts(tmp_path / "train.jsonl", "a")
    write_texts(tmp_path / "test.jsonl", "b")
    with pytest.raises(DataError, match=r"holds the splits test, train; hint: name one in spec\.data\.train\.split"):
        load(tmp_path)
    assert texts(load(tmp_path, split="test")) == ["b"]
    with pytest.raises(DataError, match="no split 'validation'; accepted: test, train"):
        load(tmp_path, split="validation")
    (tmp_path / "test.jsonl").rename(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"holds \.csv, \.jsonl files"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00002.parquet", "train"),
        ("data/train_sft-00000-of-00002-0123456789abcdef.parquet", "train_sft"),
        ("train/data-00000-of-00001.arrow", "train"),
        ("data-00000-of-00001.arrow", None),
        ("main/test-00000-of-00001.parquet", "test"),
        ("default/validation/0000.parquet", "validation"),
        ("my_dev.jsonl", "validation"),
        ("training.csv", "train"),
        ("part-0.jsonl", None),
        ("constraints.jsonl", None),
    ],
)
def test_splits_are_told_from_names(name: str, split: str | None) -> None:
    assert selection.split_of(name) == split


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("*.jsonl", ["a.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b/c.jsonl", "b/d/e.jsonl"]),
        ("b/*", ["b/c.jsonl"]),
        ("?/[c-d].jsonl", ["b/c.jsonl"]),
        ("b/**", ["b/c.jsonl", "b/d/e.jsonl"]),
    ],
)
def test_a_star_stays_in_its_directory_and_two_do_not(pattern: str, matched: list[str]) -> None:
    assert selection.matching(["a.jsonl", "b/c.jsonl", "b/d/e.jsonl"], pattern) == matched


def test_a_saved_dataset_with_splits_is_read_by_split(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "state.json").write_text("{}")
        for shard in range(2):
            content = as_arrow([{"text": f"{split} {shard}"}])
            (tmp_path / split / f"data-0000{shard}-of-00002.arrow").write_bytes(content)
    assert texts(load(tmp_path, split="test")) == ["test 0", "test 1"]
    assert texts(load(tmp_path / "train")) == ["train 0", "train 1"]


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "truncated gzip": ("a.jsonl.gz", gzip.compress(as_lines(ROWS))[:-12],
     r"decompressed as \.gz.*is the file complete"),
    "no gzip at all": ("a.jsonl.gz", as_lines(ROWS), r"decompressed as \.gz"),
    "truncated bz2": ("a.jsonl.bz2", bz2.compress(as_lines(ROWS))[:-12], r"decompressed as \.bz2"),
    "truncated xz": ("a.csv.xz", lzma.compress(as_lines(ROWS))[:-12], r"decompressed as \.xz"),
    "truncated zstd": ("a.csv.zst", PACKERS[".zst"](as_lines(ROWS))[:-4], r"decompressed as \.zst"),
    "truncated parquet": ("a.parquet", as_parquet(ROWS)[:-30], "cannot be read as Parquet"),
    "damaged parquet": ("a.parquet", as_parquet(ROWS)[:40] + b"\0" * 60 + as_parquet(ROWS)[100:], "as Parquet"),
    "no parquet": ("a.parquet", b"hello", "cannot be read as Parquet"),
    "empty parquet": ("a.parquet", b"", "cannot be read as Parquet"),
    "truncated arrow": ("a.arrow", as_arrow(ROWS)[:-100], "cannot be read as Arrow"),
    "csv in another encoding": ("a.csv", "text\nok\ncafé\n".encode("latin-1"), "line 3: is not UTF-8"),
    "json in another encoding": ("a.json", '[{"text":\n"café"}]'.encode("latin-1"), "line 2: is not UTF-8"),
    "broken list": ("a.json", b'[{"text": "a"},\n{"text": }]', "line 2: is not valid JSON"),
    "open quote": ("a.csv", b'text,b\n1,2\n"open,3\n4,5\n', "line 3: is not valid CSV"),
    "double column": ("a.csv", b"text,text\n1,2\n", "the column 'text' appears twice"),
    "header only": ("a.csv", b"text\n", "is empty"),
    "empty list": ("a.json", b"[]", "is empty"),
    "unknown suffix": ("a.xlsx", b"PK", r"format not recognised from its name; accepted: \.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_broken_file_is_an_error_that_names_it_whatever_is_done_with_bad_rows(
    tmp_path: Path, name: str, skip_bad: bool
) -> None:
    file, content, message = BROKEN[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        load(tmp_path / file, skip_bad)
    assert str(tmp_path / file) in str(refused.value)


BAD_ROWS: dict[str, tuple[bytes, str]] = {
    ".jsonl": (b'{"text": "a"}\n{"text": 3}\n{"text": \n{"text": "b"}\n', "line 2"),
    ".json": (b'[{"text": "a"},\n7,\n{"text": "b"}, {"text": null}]', "row 2"),
    ".csv": (b'text,n\n"a\n",1\nonly\nb,2\n', "line 4"),
    ".parquet": (as_parquet([{"text": "a"}, {"text": None}, {"text": "b"}]), "row 2"),
}


@pytest.mark.parametrize("suffix", BAD_ROWS)
def test_a_bad_row_ends_the_run_or_is_counted(tmp_path: Path, suffix: str) -> None:
    content, place = BAD_ROWS[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a{suffix} {place}: "):
        load(path)
    loaded = load(path, skip_bad=True)
    assert [text.strip() for text in texts(loaded)] == ["a", "b"]
    assert len(loaded.bad) == {".jsonl": 2, ".json": 2, ".csv": 1, ".parquet": 1}[suffix]
    assert rows.skipped(loaded.bad).startswith(f"; {len(loaded.bad)} bad rows skipped, the first: file://")


def test_a_row_with_a_key_twice_is_a_bad_row_of_which_no_value_is_taken(tmp_path: Path) -> None:
    good, twice = '{"prompt": "a", "completion": "b"}', '{"prompt": "a", "completion": "b", "prompt": "c"}'
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{good}\n{twice}\n")
    with pytest.raises(DataError, match=r"rows\.jsonl line 2: has the key 'prompt' twice; accepted: .* each key once"):
        load(file)
    loaded = load(file, skip_bad=True)
    assert (len(loaded.rows), len(loaded.bad)) == (1, 1)


def test_a_file_of_bad_rows_only_is_an_error_even_where_they_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{\n[]\n")
    with pytest.raises(DataError, match=r"none of the 2 rows can be read; the first: .*line 1"):
        load(tmp_path / "a.jsonl", skip_bad=True)


def test_a_preference_without_its_other_half_is_a_bad_row(tmp_path: Path) -> None:
    good = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    (tmp_path / "a.jsonl").write_bytes(as_lines([good, {**good, "rejected": None}, {**good, "rejected": "2"}]))
    loaded = load(tmp_path / "a.jsonl", skip_bad=True)
    assert (loaded.format, len(loaded.rows), len(loaded.bad)) == ("preference", 1, 2)


def test_a_preference_that_repeats_its_prompt_has_it_once(tmp_path: Path) -> None:
    question = {"role": "user", "content": "1+1?"}
    both = {part: [question, {"role": "assistant", "content": part}] for part in ("chosen", "rejected")}
    (tmp_path / "a.jsonl").write_bytes(as_lines([{"prompt": "1+1?", **both}]))
    assert list(load(tmp_path / "a.jsonl").rows[0].messages) == both["chosen"]


def test_columns_are_named_in_every_format(tmp_path: Path) -> None:
    for suffix, write in WRITERS.items():
        (tmp_path / f"a{suffix}").write_bytes(write([{"ask": "1+1?", "say": "2"}]))
        loaded = load(tmp_path / f"a{suffix}", columns=Columns(prompt="ask", completion="say"))
        assert loaded.format == "prompt-completion"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_is_no_regular_file_is_refused_before_it_is_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "a.jsonl")
    accepted = "is not a regular file; accepted: a file, a pattern or a directory"
    with pytest.raises(DataError, match=f"spec.data.train.uri: file://{tmp_path}/a.jsonl: {accepted}"):
        load(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=r"field: file://.*a\.jsonl: is not a regular file; accepted: the URI of"):
        storage.read_file(f"file://{tmp_path}/a.jsonl", "field")
    with pytest.raises(DataError, match="no file matches the pattern"):
        load(tmp_path / "*.jsonl")


def test_the_lineage_knows_every_file(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "a")
    write_texts(tmp_path / "b.jsonl", "b")
    listed = files.facts(DataSource(uri=f"file://{tmp_path}"), "spec.data.train")["files"]
    assert [(file["uri"], file["bytes"]) for file in listed] == [
        (f"file://{tmp_path}/a.jsonl", 13),
        (f"file://{tmp_path}/b.jsonl", 13),
    ]
    assert listed[0]["sha256"] != listed[1]["sha256"]
