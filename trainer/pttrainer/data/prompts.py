"""Prompts for reinforcement learning: tokenised rows, and the order in which they are drawn.

Draw number i is row `order(i // n)[i % n]`: a new shuffle of all n rows every epoch, from the seed alone. The whole
state of the data is therefore one number: how many prompts were drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pttrainer.data.rows import Row, Rows
from pttrainer.data.sources.images import decoding, in_messages
from pttrainer.data.sources.images.decoding import CheckedImage
from pttrainer.data.tokenization.chat_template import Chat, Message, Tools
from pttrainer.errors import DataError


@dataclass(frozen=True)
class Question:
    """A prompt to complete.

    fields: the row for the rewards, with the gold answer under `answer`; gold: that answer, or the row's own
    completion. messages, tools: source of the tokens. teacher_tokens: the prompt of a self-teacher with privileged
    context. images: those that tokens stand for.
    """

    tokens: Sequence[int]
    text: str
    fields: Mapping[str, Any]
    gold: str = ""
    messages: Sequence[Message] = ()
    tools: Tools = None
    teacher_tokens: Sequence[int] = ()
    images: tuple[CheckedImage, ...] = ()


@dataclass(frozen=True)
class Questions:
    """The usable questions. too_long: questions without room for a completion; bad: rows that were skipped."""

    fitting: list[Question]
    too_long: int
    bad: Sequence[DataError]
    lengths: Sequence[int]


def questions(rows: Rows, chat: Chat, length: int, field: str, *, with_answer: bool, tools: Tools = None) -> Questions:
    """Return the prompts with room for a completion within `length` tokens; raise DataError if there are none.

    tools: offered to the model in addition to a row's own.
    """
    readable, bad = rows.convert(lambda row: _question(row, chat, field, tools, with_answer=with_answer))
    fitting = [question for question in readable if len(question.tokens) < length]
    if not fitting:
        shortest = min(len(question.tokens) for question in readable)
        raise DataError(
            f"{rows.uri}: no prompt leaves room for a completion: the shortest has {shortest} tokens, sequenceLength "
            f"is {length}; hint: raise spec.training.sequenceLength"
        )
    return Questions(fitting, len(readable) - len(fitting), bad, [len(question.tokens) for question in readable])


class Order:
    """The order in which questions are drawn."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed

    def __getitem__(self, draw: int) -> int:
        epoch, place = divmod(draw, self._count)
        return int(_permutation(self._count, self._seed, epoch)[place])


@lru_cache(maxsize=4)
def _permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


def _question(row: Row, chat: Chat, field: str, tools: Tools, *, with_answer: bool) -> Question:
    if with_answer and row.answer is None:
        raise DataError(
            f"{row.where}: no gold answer for the reward to compare with; it has: {', '.join(row.fields)}; "
            f"hint: name the column in {field}.columns.answer"
        )
    if not row.prompt:
        raise DataError(f"{row.where}: no prompt; accepted: a row with a prompt to answer")
    count = sum(len(in_messages.image_parts(message)) for message in row.prompt)
    images = decoding.checked(row.images[:count])
    prompt = decoding.sized(row.prompt, images)
    try:
        all_tools = [*(tools or ()), *(row.tools or ())] or None
        tokens = chat.prompt_ids(prompt, all_tools)
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from error
    fields = dict(row.fields) if row.answer is None else {**row.fields, "answer": row.answer}
    text = "\n".join(in_messages.text_of(message) for message in row.prompt)
    gold = row.completion if row.answer is None else row.answer
    return Question(tokens, text, fields, gold, prompt, all_tools, images=images)
