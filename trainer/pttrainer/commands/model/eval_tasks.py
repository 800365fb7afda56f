"""Builtin tasks of `eval`: how a row becomes a prompt, what the model is asked to end with, and what counts.

A task reads the columns that public data sets of its kind have, writes the rows as `prompt` and `answer` (all other
columns stay, for rewards), and appends its instruction to the prompt, so that models without a system role get it, too.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ptapi.spec import DataSource
from pttrainer.data.rows.columns import USUAL
from pttrainer.data.rows.load import records
from pttrainer.data.rows.record_to_row import images_of
from pttrainer.data.sources import files
from pttrainer.data.sources.images.references import Origin, reference
from pttrainer.errors import DataError

Record = Mapping[str, Any]
Labels = Sequence[str]
LETTERS = "ABCDEFGHIJ"


class Task(NamedTuple):
    """row: prompt and answer of a record. rewards: builtins; the first decides pass@k. answers: as in the spec."""

    row: Callable[[Record, Labels], tuple[str, str]]
    instruction: str
    max_tokens: int
    rewards: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


def prepared(task: Task, source: DataSource, labels: Labels, instruction: str | None, directory: Path) -> str:
    """Write the task's rows into a file of the directory and return its URI. Raises DataError."""
    read = [(record, *_row(task, record, labels)) for record in _records(source)]
    names = labels or sorted({answer for _, _, answer in read})
    words = (task.instruction if instruction is None else instruction).replace("{labels}", ", ".join(names))
    path = directory / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for record, prompt, answer in read:
            columns = record.columns.items()
            kept = {key: value for key, value in columns if key not in _OTHER_FORMS and not isinstance(value, bytes)}
            row = {**kept, "prompt": f"{prompt}\n\n{words}".strip(), "answer": answer, **_images(record)}
            file.write(json.dumps(row, default=str) + "\n")
    return f"file://{path}"


class _Located(NamedTuple):
    columns: Record
    where: str
    file: str


_OTHER_FORMS = (
    "messages",
    "conversations",
    "chosen",
    "rejected",
    "completion",
    "response",
    "output",
    "images",
    "image",
)
"""Columns by which a row would be read as something else."""


def _records(source: DataSource) -> Iterator[_Located]:
    data_files = files.find(source, "--data", files.silent)
    for number, (file, record) in enumerate(records(data_files)):
        if number == source.limit:
            return
        if isinstance(record.value, DataError):
            raise record.value
        yield _Located(record.value, record.where, file)


def _images(record: _Located) -> Record:
    """Return the row's images, if it has any, as another file can name them. Raises DataError."""
    column, values = images_of(record.columns, {}, record.where)
    origin = Origin(record.file, https=True)  # whether the web is allowed is checked where the rows are read
    references = [reference(value, f"{record.where}: column {column!r}", origin) for value in values]
    return {"images": [{"url": image.url} for image in references]} if references else {}


def _row(task: Task, record: _Located, labels: Labels) -> tuple[str, str]:
    try:
        return task.row(record.columns, labels)
    except DataError as error:
        raise DataError(f"{record.where}: {error}") from error


def _column(record: Record, *names: str) -> Any:
    """Return the value of the first of these columns that the record has. Raises DataError."""
    for name in names:
        if record.get(name) is not None:
            return record[name]
    raise DataError(f"no column {' or '.join(names)}; it has: {', '.join(record)}")


def _question(record: Record, labels: Labels) -> tuple[str, str]:
    return str(_column(record, "question", "prompt", "problem")), str(_column(record, "answer", "solution"))


def _choice(record: Record, labels: Labels) -> tuple[str, str]:
    """Return the question with lettered choices, and the letter: MMLU's columns, ARC's, or a prompt that has them."""
    question, answer = str(_column(record, "question", "prompt")), _column(record, "answerKey", "answer")
    choices = record.get("choices")
    if choices is None:
        return question, str(answer)
    texts = choices["text"] if isinstance(choices, Mapping) else choices
    names = [str(name) for name in choices["label"]] if isinstance(choices, Mapping) else list(LETTERS[: len(texts)])
    place = answer if isinstance(answer, int) else names.index(str(answer)) if str(answer) in names else -1
    if not 0 <= place < len(texts) <= len(LETTERS):
        accepted = f"a number from 0 to {len(texts) - 1}, or one of {', '.join(names)}; at most {len(LETTERS)} choices"
        raise DataError(f"answer: {answer!r}: accepted: {accepted}")
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False)]
    return "\n".join((question, *lines)), LETTERS[place]


def _label(record: Record, labels: Labels) -> tuple[str, str]:
    """Return the text, which a row with images needs not have, and its label.

    A number is the place of the label in --label.
    """
    label = _column(record, "label", "answer")
    if isinstance(label, int) and labels:
        if not 0 <= label < len(labels):
            raise DataError(f"label: {label}: accepted: 0 to {len(labels) - 1}, the place in --label")
        label = labels[label]
    texts = ("text", "sentence", "prompt", "question")
    has_images = any(record.get(name) for name in USUAL["images"])
    text = "" if has_images and not any(record.get(name) for name in texts) else _column(record, *texts)
    return str(text), str(label)


def _program(record: Record, labels: Labels) -> tuple[str, str]:
    return str(_column(record, "prompt", "text", "question")), str(record.get("canonical_solution") or "")


TASKS = {
    "gsm8k": Task(_question, 'Solve it step by step. End with "#### " and the number alone.', 512, rewards=("gsm8k",)),
    "choice": Task(_choice, 'End with "Answer: " and the letter of the right choice alone.', 256, rewards=("choice",)),
    "labels": Task(
        _label, "Answer with one of these labels and nothing else: {labels}", 16, answers=("accuracy", "macroF1")
    ),
    "code": Task(_program, "Answer with one complete Python program in a ```python block.", 1024, rewards=("code",)),
}
