"""Rows to training examples: tokens, and which of them are learned.

An example keeps at most `length` predictions (one token more than that). A row without a token to learn is dropped and
counted; a data set without any is an error that names the template.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pttrainer.data.distillation import teacher_logprobs
from pttrainer.data.distillation.teacher_logprobs import TeacherLogprobs
from pttrainer.data.rows import Row, Rows
from pttrainer.data.sources.images import decoding
from pttrainer.data.sources.images.decoding import CheckedImage
from pttrainer.data.tokenization import image_slots
from pttrainer.data.tokenization.chat_template import Chat, Tokens
from pttrainer.errors import DataError


@dataclass(frozen=True)
class Example:
    """tokens: [n] int32; learned: [n] bool (never the first token: nothing predicts it). teacher: of learned tokens.

    images: those that tokens stand for, in order.
    """

    tokens: np.ndarray
    learned: np.ndarray
    teacher: TeacherLogprobs | None = None
    images: tuple[CheckedImage, ...] = ()

    @property
    def length(self) -> int:
        """Return the number of predictions: tokens less one."""
        return len(self.tokens) - 1


@dataclass(frozen=True)
class Examples:
    """The examples of all rows.

    cut: rows longer than the sequence; dropped: rows with nothing to learn; without_target: those of them that had
    nothing to learn before they were cut.

    bad: skipped rows, including those that could not be read. lengths: tokens of the readable rows, uncut.
    """

    examples: list[Example]
    rows: int
    cut: int
    dropped: int
    without_target: int = 0
    bad: Sequence[DataError] = ()
    lengths: Sequence[int] = ()


_WITHOUT_TARGET = {
    "preference": ("preferences (chosen, rejected)", "better answer"),
    "prompt-only": ("prompts without an answer", "answer"),
}
"""Formats that name no text to learn: what rows are, and what is missing."""


def make(rows: Rows, chat: Chat, length: int, *, learn_prompt: bool = False, with_teacher: bool = False) -> Examples:
    """Return examples of all rows with something to learn; raise DataError if none has.

    with_teacher: add the teacher's log-probs of each learned token, from the rows.
    """
    if rows.format in _WITHOUT_TARGET:
        held, hint = _WITHOUT_TARGET[rows.format]
        raise DataError(
            f"{rows.uri}: rows are {held}; accepted for sft: messages, prompt-completion, prompt-answer, text; "
            f"hint: set columns.completion to the column that holds the {hint}"
        )
    outcomes = 0

    def example(row: Row) -> tuple[Example, int, bool]:
        nonlocal outcomes
        images = decoding.checked(row.images)
        tokens = row_tokens(row, chat, images)
        one, targets = _example(tokens, length, learn_prompt, images, chat), sum(tokens.assistant_mask[1:])
        if with_teacher:
            teacher = teacher_logprobs.read(row.fields, row.where, targets, outcomes, chat.tokenizer.size)
            outcomes, learned = teacher.ids.shape[1], int(one.learned.sum())
            one = replace(one, teacher=TeacherLogprobs(teacher.ids[:learned], teacher.logps[:learned]))
        return one, len(tokens.ids), not (learn_prompt or targets)

    made, bad = rows.convert(example)
    examples = [one for one, _, _ in made if one.learned.any()]
    lengths = [count for _, count, _ in made]
    without_target = sum(has_none for _, _, has_none in made)
    if not examples:
        raise DataError(_nothing_to_learn(rows, chat, length))
    cut = sum(count > length + 1 for count in lengths)
    return Examples(examples, len(lengths), cut, len(lengths) - len(examples), without_target, bad, lengths)


def row_tokens(row: Row, chat: Chat, images: Sequence[CheckedImage]) -> Tokens:
    """Return a row's tokens; raise DataError, naming the row. images: the row's."""
    try:
        if row.text is not None:
            return chat.text_tokens(row.text)
        return chat.tokens(decoding.sized(row.messages, images), row.tools)
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from error


def _example(tokens: Tokens, length: int, learn_prompt: bool, images: tuple[CheckedImage, ...], chat: Chat) -> Example:
    length += 1
    if chat.images is not None:
        cut = tokens.ids[:length]
        counts = [chat.images.count(image.size) for image in images]
        length, whole = image_slots.whole_images(cut, chat.images.part_id, counts)
        images = images[:whole]
    ids = np.asarray(tokens.ids[:length], np.int32)
    learned = np.asarray(tokens.assistant_mask[:length], bool)
    if learn_prompt:
        learned = np.isin(ids, list(chat.image_ids), invert=True)
    learned[:1] = False
    return Example(ids, learned, images=images)


def _nothing_to_learn(rows: Rows, chat: Chat, length: int) -> str:
    template = (
        "plain text, as the model has no chat template"
        if chat.source is None
        else f"chat template {_short(chat.source)}"
    )
    return (
        f"{rows.uri}: none of the {len(rows.rows)} rows has a token to learn (format {rows.format}, {template}, "
        f"sequenceLength {length}); accepted: rows with an assistant's turn within the first {length} tokens; "
        "hint: raise spec.training.sequenceLength, or check the roles of the messages"
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
