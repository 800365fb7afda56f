"""Rows to answers that are each labelled good or bad, without a pair: what kto learns from.

A row is a conversation with a label, or a preference, which is a good answer and a bad one to the same prompt. For the
estimate of the KL each prompt is also continued by the answer to another one (`mismatched`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pttrainer.data.preferences.pairs import answer_tokens, common_prompt, fitted
from pttrainer.data.rows import Row, Rows
from pttrainer.data.sft_examples import Example
from pttrainer.data.tokenization.chat_template import Chat, Message, Tokens
from pttrainer.errors import DataError

LABELS = {"true": True, "1": True, "false": False, "0": False}
"""Values of the label, also as text of a CSV file in any case."""


@dataclass(frozen=True)
class LabelledAnswer:
    """A prompt, an answer to it, and whether that is good."""

    row: Row
    prompt: Sequence[Message]
    messages: Sequence[Message]
    is_desirable: bool

    def tokens(self, chat: Chat) -> Tokens:
        """Return the tokens of prompt and answer; those of the answer are learned. Raise DataError."""
        return answer_tokens(self.prompt, self.messages, chat, self.row)

    def answered_by(self, other: "LabelledAnswer") -> "LabelledAnswer":
        """Return this prompt with the answer to another one."""
        messages = [*self.prompt, *other.messages[len(other.prompt) :]]
        return LabelledAnswer(self.row, self.prompt, messages, self.is_desirable)


@dataclass(frozen=True)
class LabelledAnswers:
    """The answers of all rows and their examples. cut: answers longer than the sequence; lengths: tokens, uncut."""

    answers: list[LabelledAnswer]
    examples: list[Example]
    cut: int
    bad: Sequence[DataError]
    lengths: Sequence[int]

    @property
    def desirable(self) -> int:
        """Return the number of good answers."""
        return sum(answer.is_desirable for answer in self.answers)


def make(rows: Rows, chat: Chat, length: int, label: str | None = None) -> LabelledAnswers:
    """Return the answers of all rows, at most `length` predictions each; raise DataError. label: the column."""
    if rows.format == "text":
        raise DataError(
            f"{rows.uri}: rows are text; accepted for kto: prompt-completion or messages with a label, or preference"
        )
    made, bad = rows.convert(lambda row: [(one, one.tokens(chat)) for one in answers_of(row, label)])
    answers, tokens = zip(*(pair for of_row in made for pair in of_row), strict=True)
    lengths = [len(one.ids) for one in tokens]
    examples = [fitted([one], length)[0] for one in tokens]
    return LabelledAnswers(list(answers), examples, sum(n > length + 1 for n in lengths), bad, lengths)


def answers_of(row: Row, label: str | None = None) -> list[LabelledAnswer]:
    """Return a row's answers: one, or both of a preference. Raise DataError."""
    if row.rejected:
        prompt = common_prompt(row)
        return [LabelledAnswer(row, prompt, row.messages, True), LabelledAnswer(row, prompt, row.rejected, False)]
    if not row.prompt:
        raise DataError(f"{row.where}: no prompt before the answer; accepted: a prompt and an answer")
    return [LabelledAnswer(row, row.prompt, row.messages, _label(row, label or "label"))]


def mismatched(answers: Sequence[LabelledAnswer], others: Sequence[int], chat: Chat, length: int) -> list[Example]:
    """Return each prompt with the answer numbered in `others`, as examples."""
    pairs = zip(answers, others, strict=True)
    return [fitted([answer.answered_by(answers[other]).tokens(chat)], length)[0] for answer, other in pairs]


def _label(row: Row, column: str) -> bool:
    if column not in row.fields:
        raise DataError(
            f"{row.where}: no column {column!r}; it has: {', '.join(row.fields)}; accepted for kto: a label, true or "
            "false; hint: name its column in data.train.columns.label"
        )
    value = row.fields[column]
    label = LABELS.get(str(value).strip().lower())
    if label is None:
        raise DataError(f"{row.where}: column {column!r} is {value!r}; accepted: true or false, 1 or 0")
    return label
