"""Rows of a JSONL file, in one shape whatever their columns are called.

Formats are told apart by their columns (`FORMATS`); the user may name the format, or columns, instead. Every
complaint names file, line, column and what is accepted. Tokens come later: `examples`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptapi.spec import Columns, DataSource
from pttrainer import storage
from pttrainer.errors import DataError

USUAL: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations"),
    "prompt": ("prompt", "question", "instruction"),
    "completion": ("completion", "response", "output"),
    "answer": ("answer", "solution"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "text": ("text",),
}
"""Column names that are recognised without being told."""

FORMATS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "prompt-completion": ("prompt", "completion"),
    "prompt-answer": ("prompt", "answer"),
    "text": ("text",),
}
"""Columns that a format needs, in the order in which `auto` tries them."""

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Row:
    """One line of data. `messages` is the conversation (empty for plain text); `answer` the gold answer."""

    line: int
    messages: tuple[Mapping[str, Any], ...]
    text: str | None
    answer: str | None
    fields: Mapping[str, Any]

    @property
    def prompt(self) -> tuple[Mapping[str, Any], ...]:
        """The conversation up to where the assistant speaks last: what reinforcement learning starts from."""
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] == "assistant":
            end -= 1
        return self.messages[:end]


@dataclass(frozen=True)
class Rows:
    """The rows of a source, and how they were read (for the log and for errors)."""

    uri: str
    format: str
    columns: Mapping[str, str]
    rows: list[Row]


def load(source: DataSource, field: str, system_prompt: str | None = None) -> Rows:
    """Reads a source; `field` is where the job names it (`spec.data.train`). Raises DataError."""
    content = storage.read_file(source.uri, f"{field}.uri")
    lines = _objects(content, source)
    if not lines:
        raise DataError(f"{field}.uri: {source.uri}: is empty; accepted: JSON Lines, one object a line")
    first_line, first = lines[0]
    columns = _columns(source.columns, first, f"{source.uri} line {first_line}")
    form = _format(source, columns, first, field)
    rows = [_row(form, columns, line, raw, source.uri, system_prompt) for line, raw in lines]
    return Rows(source.uri, form, {key: columns[key] for key in FORMATS[form]}, rows)


def _objects(content: bytes, source: DataSource) -> list[tuple[int, dict[str, Any]]]:
    found: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "is not UTF-8"
            raise DataError(
                f"{source.uri} line {number}: is not valid JSON ({reason}); accepted: one JSON object a line"
            ) from error
        if not isinstance(value, dict):
            raise DataError(f"{source.uri} line {number}: is a {type(value).__name__}; accepted: a JSON object")
        found.append((number, value))
        if source.limit is not None and len(found) == source.limit:
            break
    return found


def _columns(named: Columns, first: Mapping[str, Any], where: str) -> dict[str, str]:
    """Which column plays which part. A column that the user names must exist."""
    columns: dict[str, str] = {}
    for part, usual in USUAL.items():
        name = getattr(named, part)
        if name is not None and name not in first:
            raise DataError(f"{where}: no column {name!r} (data.columns.{part}); it has: {', '.join(first)}")
        present = [name] if name is not None else [column for column in usual if column in first]
        if present:
            columns[part] = present[0]
    return columns


def _format(source: DataSource, columns: Mapping[str, str], first: Mapping[str, Any], field: str) -> str:
    if source.format != "auto":
        missing = [part for part in FORMATS[source.format] if part not in columns]
        if missing:
            raise DataError(
                f"{source.uri}: format {source.format} needs the column {missing[0]} (usually "
                f"{' or '.join(USUAL[missing[0]])}); it has: {', '.join(first)}; hint: set {field}.columns.{missing[0]}"
            )
        return source.format
    for form, needed in FORMATS.items():
        if all(part in columns for part in needed):
            return form
    accepted = "; ".join(f"{form}: {' + '.join(needed)}" for form, needed in FORMATS.items())
    raise DataError(
        f"{source.uri}: format not recognised from the columns {', '.join(first) or '(none)'}; accepted: {accepted}; "
        f"hint: name them in {field}.columns"
    )


def _row(form: str, columns: Mapping[str, str], line: int, raw: Mapping[str, Any], uri: str, system: str | None) -> Row:
    where = f"{uri} line {line}"
    for part in FORMATS[form]:
        if columns[part] not in raw:
            raise DataError(f"{where}: no column {columns[part]!r}; it has: {', '.join(raw) or '(none)'}")
    answer = raw.get(columns["answer"]) if "answer" in columns else None
    gold = None if answer is None else str(answer)
    if form == "text":
        return Row(line, (), _text(raw, columns["text"], where), gold, raw)
    messages = _messages(form, columns, raw, where)
    if system is not None and (not messages or messages[0]["role"] != "system"):
        messages = [{"role": "system", "content": system}, *messages]
    return Row(line, tuple(messages), None, gold, raw)


def _messages(form: str, columns: Mapping[str, str], raw: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    if form == "messages":
        return _conversation(raw, columns["messages"], where)
    prompt: list[Mapping[str, Any]] = []
    if "prompt" in columns and columns["prompt"] in raw:
        prompt = _turns(raw, columns["prompt"], "user", where)
    said = {"prompt-completion": "completion", "prompt-answer": "answer", "preference": "chosen"}[form]
    return [*prompt, *_turns(raw, columns[said], "assistant", where)]


def _turns(raw: Mapping[str, Any], column: str, role: str, where: str) -> list[Mapping[str, Any]]:
    """A column holds text (one turn of `role`) or a conversation."""
    if isinstance(raw[column], list):
        return _conversation(raw, column, where)
    if isinstance(raw[column], int | float) and not isinstance(raw[column], bool):
        return [{"role": role, "content": str(raw[column])}]
    return [{"role": role, "content": _text(raw, column, where)}]


def _text(raw: Mapping[str, Any], column: str, where: str) -> str:
    value = raw[column]
    if not isinstance(value, str):
        raise DataError(f"{where}: column {column!r}: is {_kind(value)}; accepted: a string")
    return value


def _conversation(raw: Mapping[str, Any], column: str, where: str) -> list[Mapping[str, Any]]:
    value = raw[column]
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: column {column!r}: is {_kind(value)}; accepted: a list of {{role, content}}")
    for turn, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise DataError(
                f"{where}: column {column!r}, message {turn}: accepted: {{role, content}} with text as content"
            )
        if message.get("role") not in ROLES:
            raise DataError(
                f"{where}: column {column!r}, message {turn}: role {message.get('role')!r}; accepted: "
                f"{', '.join(ROLES)}"
            )
    return list(value)


def _kind(value: Any) -> str:
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        dict: "an object",
        str: "a string",
    }
    return "an empty list" if value == [] else names.get(type(value), "a list")
