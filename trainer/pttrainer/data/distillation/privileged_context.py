"""What a self-teacher is told and its student is not: a solution, a demonstration, advice, inside the prompt's text.

A template such as `{prompt}\\n\\nA right answer: {answer}` takes the place of what the prompt's last message says.
`{prompt}` is that message, `{answer}` the gold answer, and any other word in braces a column of the row. Text that is
put in is not looked through again. Left out: context for a teacher with other weights, which no paper asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.chat_template import Chat, Message
from pttrainer.errors import DataError

PROMPT = "prompt"
_WORD = re.compile(r"\{(\w+)\}")


def messages(template: str, question: Question) -> list[Message]:
    """The prompt as the teacher reads it; raises DataError where the row has not what the template names."""
    last = question.messages[-1]
    known = {**{name: str(value) for name, value in question.fields.items()}, PROMPT: str(last.get("content", ""))}
    if "answer" not in known and question.gold:
        known["answer"] = question.gold
    unknown = [word for word in _WORD.findall(template) if word not in known]
    if unknown:
        raise DataError(
            f"spec.algorithm.distill.selfTeacher.privilegedContext: {{{unknown[0]}}}: no such column in the row of "
            f"{question.text[:60]!r}; accepted: {', '.join(sorted(known))}"
        )
    return [*question.messages[:-1], {**last, "content": _WORD.sub(lambda found: known[found[1]], template)}]


def told(template: str, questions: Sequence[Question], chat: Chat) -> list[Question]:
    """The questions with the teacher's prompts beside their own."""
    return [replace(one, told=chat.prompt_ids(messages(template, one), one.tools)) for one in questions]
