"""One record of a file as a row: its conversation, answer, tools and images."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import isfinite
from typing import Any

from pttrainer.data import conversation
from pttrainer.data.rows.columns import FORMATS, USUAL, Reading
from pttrainer.data.rows.row import Row
from pttrainer.data.sources.formats.record import Record
from pttrainer.data.sources.images import in_messages
from pttrainer.data.sources.images.references import Origin, reference
from pttrainer.errors import DataError

TOOLS = "tools"
"""The column of tools that the assistant may call: a list, or its JSON text."""


def convert(reading: Reading, record: Record, raw: Mapping[str, Any], system: str | None, origin: Origin) -> Row:
    """Return the row of a record with these values. Raise DataError."""
    form, columns, where = reading.format, reading.columns, record.where
    for part in FORMATS[form]:
        if columns[part] not in raw:
            raise DataError(f"{where}: no column {columns[part]!r}; it has: {', '.join(raw) or '(none)'}")
    answer = raw.get(columns["answer"]) if "answer" in columns else None
    gold = None if answer is None else str(answer)
    fields = _without_bytes(dict(raw))
    column, own_images = images_of(raw, columns, where)
    if form == "text":
        _refuse_images(own_images, form, where)
        return Row(record.number, where, (), _text(raw, columns["text"], where), gold, fields)
    tools = conversation.tools(raw.get(TOOLS), where)
    if form == "preference":
        first, second = _answers(columns, raw, where)
        chosen, named = in_messages.place(first, column, own_images, where)
        rejected, others = in_messages.place(second, column, own_images, where)
        if [value for _, value in named] != [value for _, value in others]:
            raise DataError(
                f"{where}: {columns['chosen']!r} and {columns['rejected']!r} have other images; accepted: images of "
                "the prompt, the same in both"
            )
        images = tuple(reference(value, here, origin) for here, value in named)
        better, worse = _with_system(chosen, system), _with_system(rejected, system)
        return Row(record.number, where, better, None, gold, fields, tools, worse, images)
    messages, named = in_messages.place(_messages(form, columns, raw, where), column, own_images, where)
    images = tuple(reference(value, here, origin) for here, value in named)
    return Row(record.number, where, _with_system(messages, system), None, gold, fields, tools, images=images)


def images_of(raw: Mapping[str, Any], columns: Mapping[str, str], where: str) -> tuple[str, list[Any]]:
    """Return a row's column of images and what it holds, without nulls; JSON text of a list is one.

    Not every row of JSON Lines has the column, so the first one does not decide that there is none.
    """
    column = columns.get("images") or next((name for name in USUAL["images"] if name in raw), USUAL["images"][0])
    value = raw.get(column)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = conversation.parsed(value, f"{where}: column {column!r}")
    return column, [one for one in (value if isinstance(value, list) else [value]) if one not in (None, "")]


def _refuse_images(images: Sequence[Any], form: str, where: str) -> None:
    if images:
        raise DataError(
            f"{where}: has images, which rows of format {form} cannot have; accepted: images in messages, "
            "prompt-completion, prompt-answer and prompt-only"
        )


def _without_bytes(value: Any) -> Any:
    """Return a value without the content of files in it (bytes, or Hugging Face's `{bytes, path}`)."""
    if isinstance(value, dict):
        return {key: _without_bytes(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    if isinstance(value, list):
        return [_without_bytes(inner) for inner in value if not isinstance(inner, bytes)]
    return value


def _with_system(messages: list[Mapping[str, Any]], system: str | None) -> tuple[Mapping[str, Any], ...]:
    """Return the conversation, with the job's system prompt first if it has none of its own."""
    if system is not None and (not messages or messages[0]["role"] != "system"):
        return ({"role": "system", "content": system}, *messages)
    return tuple(messages)


def _messages(form: str, columns: Mapping[str, str], raw: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    if form == "messages":
        return conversation.turns(raw[columns["messages"]], columns["messages"], where)
    prompt = [*_turns(raw, columns["prompt"], "user", where)]
    for answer in FORMATS[form][1:]:
        prompt += _turns(raw, columns[answer], "assistant", where)
    return prompt


def _answers(
    columns: Mapping[str, str], raw: Mapping[str, Any], where: str
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the conversations with the better and with the worse answer.

    They may repeat the prompt, which is then theirs; texts without a prompt column share their beginning.
    """
    chosen, rejected = (_turns(raw, columns[part], "assistant", where) for part in ("chosen", "rejected"))
    if chosen == rejected:
        raise DataError(
            f"{where}: {columns['chosen']!r} and {columns['rejected']!r} are the same; accepted: two answers"
        )
    if "prompt" not in columns or raw.get(columns["prompt"]) is None:
        texts = isinstance(raw[columns["chosen"]], str) and isinstance(raw[columns["rejected"]], str)
        return _apart(chosen[0]["content"], rejected[0]["content"]) if texts else (chosen, rejected)
    prompt = _turns(raw, columns["prompt"], "user", where)
    first, second = (
        messages if messages[0]["role"] != "assistant" else [*prompt, *messages] for messages in (chosen, rejected)
    )
    return first, second


def _apart(chosen: str, rejected: str) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Split two texts at their first difference: the common beginning is the prompt, without trailing space."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    if shared and chosen[shared - 1] == " ":
        shared -= 1
    prompt = {"role": "user", "content": chosen[:shared]}

    def turn(text: str) -> list[Mapping[str, Any]]:
        answer = {"role": "assistant", "content": text[shared:]}
        return [prompt, answer] if shared else [answer]

    return turn(chosen), turn(rejected)


def _turns(raw: Mapping[str, Any], column: str, role: str, where: str) -> list[Mapping[str, Any]]:
    """Return the messages of a column that holds text (one turn of `role`) or a conversation."""
    if isinstance(raw[column], list):
        return conversation.turns(raw[column], column, where)
    if isinstance(raw[column], int | float) and not isinstance(raw[column], bool) and isfinite(raw[column]):
        return [{"role": role, "content": str(raw[column])}]
    return [{"role": role, "content": _text(raw, column, where)}]


def _text(raw: Mapping[str, Any], column: str, where: str) -> str:
    value = raw[column]
    if not isinstance(value, str):
        raise DataError(f"{where}: column {column!r}: is {conversation.kind(value)}; accepted: a string")
    return value
