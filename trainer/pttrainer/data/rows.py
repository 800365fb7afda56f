"""Rows of data in one shape, whatever their file format and column names.

The columns decide the row format (`FORMATS`); the user may name the format, or the columns, instead. Every error names
file, line, column and what is accepted. Tokens come later: `sft_examples`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import isfinite
from typing import Any, TypeVar

from ptapi.spec import Columns, DataSource, DataSpec
from pttrainer.data import conversation
from pttrainer.data.sources import files, formats
from pttrainer.data.sources.formats.record import Record
from pttrainer.data.sources.images import in_messages
from pttrainer.data.sources.images.references import ImageReference, Origin, reference
from pttrainer.errors import DataError

T = TypeVar("T")

USUAL: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations"),
    "prompt": ("prompt", "question", "instruction"),
    "completion": ("completion", "response", "output"),
    "answer": ("answer", "solution"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "text": ("text",),
    "images": ("images", "image"),
}
"""Column names that are recognised by default."""

FORMATS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "prompt-completion": ("prompt", "completion"),
    "prompt-answer": ("prompt", "answer"),
    "text": ("text",),
}
"""Columns that a format needs, in the order in which `auto` tries them."""

TOOLS = "tools"
"""The column of tools that the assistant may call: a list, or its JSON text."""


@dataclass(frozen=True)
class Row:
    """A row of data. `messages` is the conversation (empty for plain text); `answer` the gold answer.

    line: its number in its file, a line or a row depending on the format; where: the same for messages, with the
    file's name. tools: what the assistant may call, in the form of chat templates. rejected: for a preference, the
    conversation with the worse answer (`messages` has the better one). images: those that `messages` have parts for, in
    their order; `fields` has none of their bytes.
    """

    line: int
    where: str
    messages: tuple[Mapping[str, Any], ...]
    text: str | None
    answer: str | None
    fields: Mapping[str, Any]
    tools: Sequence[Any] | None = None
    rejected: tuple[Mapping[str, Any], ...] = ()
    images: tuple[ImageReference, ...] = ()

    @property
    def prompt(self) -> tuple[Mapping[str, Any], ...]:
        """Return the conversation up to the assistant's last turn: the prompt of reinforcement learning."""
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] == "assistant":
            end -= 1
        return self.messages[:end]

    @property
    def completion(self) -> str:
        """Return what the assistant says after the prompt."""
        return "\n".join(str(message.get("content") or "") for message in self.messages[len(self.prompt) :])


@dataclass(frozen=True)
class Rows:
    """The rows of a source, and how they were read (for the log and for errors).

    bad: errors of rows that were skipped. skip_bad: whether later stages skip bad rows, too.
    """

    uri: str
    format: str
    columns: Mapping[str, str]
    rows: list[Row]
    files: Sequence[str] = ()
    bad: Sequence[DataError] = ()
    skip_bad: bool = False

    @property
    def form(self) -> str:
        """Return what was recognised, for the log."""
        return f"{self.format}: {', '.join(self.columns.values())}"

    def convert(self, one: Callable[[Row], T]) -> tuple[list[T], list[DataError]]:
        """Return what `one` makes of each row, and all errors where bad rows are skipped; raise DataError."""
        made: list[T] = []
        bad = list(self.bad)
        for row in self.rows:
            try:
                made.append(one(row))
            except DataError as error:
                if not self.skip_bad:
                    raise
                bad.append(error)
        if not made:
            raise DataError(f"{self.uri}: none of the {len(bad)} rows can be read; the first: {bad[0]}")
        return made, bad


def of_job(data: DataSpec, part: str, note: files.Note) -> Rows | None:
    """Return the job's `data.train` or `data.eval`; None if it names no such data. Raise DataError."""
    source: DataSource | None = getattr(data, part)
    if source is None:
        return None
    skip_bad = data.on_bad_row == "skip"
    return load(
        source, f"spec.data.{part}", data.system_prompt, skip_bad=skip_bad, note=note, https=data.allow_https_images
    )


def load(
    source: DataSource,
    field: str,
    system_prompt: str | None = None,
    *,
    skip_bad: bool = False,
    note: files.Note = files.silent,
    https: bool = False,
) -> Rows:
    """Read a source; `field` is where the job names it (`spec.data.train`). Raise DataError.

    A bad row is an error, or counted with `skip_bad`. A file that cannot be read at all is always an error. https:
    rows may name images on the web.
    """
    data_files = files.find(source, field, note)
    rows: list[Row] = []
    bad: list[DataError] = []
    reading: _Reading | None = None
    for file, record in _records(data_files):
        try:
            if isinstance(record.value, DataError):
                raise record.value
            reading = reading or _reading(source, record.value, record.where, field)
            rows.append(_row(reading, record, record.value, system_prompt, Origin(file, https)))
        except DataError as error:
            if not skip_bad:
                raise
            bad.append(error)
        if len(rows) == source.limit:
            break
    if reading is None or not rows:
        raise DataError(_no_rows(source, field, bad))
    names = [file.uri for file in data_files]
    return Rows(source.uri, reading.format, reading.used, rows, names, bad, skip_bad)


def skipped(bad: Sequence[DataError]) -> str:
    """Return the log's text about skipped rows, or an empty string."""
    return f"; {len(bad)} bad rows skipped, the first: {bad[0]}" if bad else ""


@dataclass(frozen=True)
class _Reading:
    """How rows are read; the first good row decides."""

    format: str
    columns: Mapping[str, str]

    @property
    def used(self) -> dict[str, str]:
        parts = (*FORMATS[self.format], *["images"] * ("images" in self.columns))
        return {part: self.columns[part] for part in parts}


def _reading(source: DataSource, first: Mapping[str, Any], where: str, field: str) -> _Reading:
    columns = _columns(source.columns, first, where)
    return _Reading(_format(source, columns, first, field), columns)


def _records(data_files: Sequence[files.DataFile]) -> Iterator[tuple[str, Record]]:
    """Yield every record, with the URI of its file."""
    for file in data_files:
        for record in formats.read(file.path.name, files.read(file), file.uri):
            yield file.uri, record


def _no_rows(source: DataSource, field: str, bad: Sequence[DataError]) -> str:
    if bad:
        return f"{field}.uri: {source.uri}: none of the {len(bad)} rows can be read; the first: {bad[0]}"
    return f"{field}.uri: {source.uri}: is empty; accepted: JSON Lines or another known format, with at least one row"


def _columns(named: Columns, first: Mapping[str, Any], where: str) -> dict[str, str]:
    """Map each part to its column. A column that the user names must exist."""
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


def _row(reading: _Reading, record: Record, raw: Mapping[str, Any], system: str | None, origin: Origin) -> Row:
    form, columns, where = reading.format, reading.columns, record.where
    for part in FORMATS[form]:
        if columns[part] not in raw:
            raise DataError(f"{where}: no column {columns[part]!r}; it has: {', '.join(raw) or '(none)'}")
    answer = raw.get(columns["answer"]) if "answer" in columns else None
    gold = None if answer is None else str(answer)
    fields = {name: _without_bytes(value) for name, value in raw.items()}
    column, own_images = _images(raw, columns, where)
    if form == "text":
        _refuse_images(own_images, form, where)
        return Row(record.number, where, (), _text(raw, columns["text"], where), gold, fields)
    tools = conversation.tools(raw.get(TOOLS), where)
    if form == "preference":
        chosen, rejected = (_with_system(messages_of, system) for messages_of in _answers(columns, raw, where))
        parts = [part for message in (*chosen, *rejected) for part in in_messages.image_parts(message)]
        _refuse_images([*own_images, *parts], form, where)
        return Row(record.number, where, chosen, None, gold, fields, tools, rejected)
    messages, named = in_messages.place(_messages(form, columns, raw, where), column, own_images, where)
    images = tuple(reference(value, here, origin) for here, value in named)
    return Row(record.number, where, _with_system(messages, system), None, gold, fields, tools, images=images)


def _images(raw: Mapping[str, Any], columns: Mapping[str, str], where: str) -> tuple[str, list[Any]]:
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
            "prompt-completion and prompt-answer"
        )


def _without_bytes(value: Any) -> Any:
    """Return a value without the content of files in it (Hugging Face's `{bytes, path}`)."""
    if isinstance(value, dict):
        return {key: _without_bytes(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    return [_without_bytes(inner) for inner in value] if isinstance(value, list) else value


def _with_system(messages: list[Mapping[str, Any]], system: str | None) -> tuple[Mapping[str, Any], ...]:
    """Return the conversation, with the job's system prompt first if it has none of its own."""
    if system is not None and (not messages or messages[0]["role"] != "system"):
        return ({"role": "system", "content": system}, *messages)
    return tuple(messages)


def _messages(form: str, columns: Mapping[str, str], raw: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    if form == "messages":
        return conversation.turns(raw[columns["messages"]], columns["messages"], where)
    prompt = _turns(raw, columns["prompt"], "user", where)
    answer_part = {"prompt-completion": "completion", "prompt-answer": "answer"}[form]
    return [*prompt, *_turns(raw, columns[answer_part], "assistant", where)]


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
