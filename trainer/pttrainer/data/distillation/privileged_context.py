r"""Context that only a self-teacher sees: a solution, a demonstration, advice, inside the prompt's text.

A template such as `{prompt}\n\nA right answer: {answer}` replaces the text of the prompt's last message. `{prompt}` is
that message, `{answer}` the gold answer, and any other placeholder a column of the row. Inserted text is not expanded
again. Left out: context for a teacher with other weights, which no paper uses.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.chat_template import Chat, Message
from pttrainer.errors import DataError

PROMPT = "prompt"
FIELD = "spec.algorithm.distill.selfTeacher.privilegedContext"
_WORD = re.compile(r"\{(\w+)\}")


def messages(
    template: str, question: Question, field: str = FIELD, extra: Mapping[str, str] | None = None
) -> list[Message]:
    """Return the teacher's prompt; raise DataError if the row lacks a column that the template names.

    field: where the template is from; extra: values of further placeholders.
    """
    last = question.messages[-1]
    values = {**{name: str(value) for name, value in question.fields.items()}, PROMPT: str(last.get("content", ""))}
    if "answer" not in values and question.gold:
        values["answer"] = question.gold
    values |= extra or {}
    unknown = [word for word in _WORD.findall(template) if word not in values]
    if unknown:
        raise DataError(
            f"{field}: {{{unknown[0]}}}: no such column in the row of "
            f"{question.text[:60]!r}; accepted: {', '.join(sorted(values))}"
        )
    return [*question.messages[:-1], {**last, "content": _WORD.sub(lambda match: values[match[1]], template)}]


def with_teacher_prompts(template: str, questions: Sequence[Question], chat: Chat) -> list[Question]:
    """Return the questions with the teacher's prompts added."""
    return [replace(one, teacher_tokens=chat.prompt_ids(messages(template, one), one.tools)) for one in questions]
