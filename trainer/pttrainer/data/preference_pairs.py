"""Preference rows to pairs of examples: one prompt, a better and a worse answer.

The prompt is the common beginning of both conversations; what the assistant says after it is learned. A pair that is
too long loses the beginning of its prompt, the same on both sides; only an answer that is too long by itself loses its
end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.batching import ROW_MULTIPLE, lay_out, to_batch
from pttrainer.data.rows import Row, Rows
from pttrainer.data.sft_examples import Example
from pttrainer.data.tokenization.chat_template import Chat, Message, Tokens
from pttrainer.errors import DataError


@dataclass(frozen=True)
class Pair:
    """Two examples with one prompt."""

    chosen: Example
    rejected: Example

    @property
    def length(self) -> int:
        """Return the number of predictions of the longer one."""
        return max(self.chosen.length, self.rejected.length)


@dataclass(frozen=True)
class Pairs:
    """The pairs of all rows. cut: pairs longer than the sequence; lengths: tokens of the longer answer, uncut."""

    pairs: list[Pair]
    cut: int
    bad: Sequence[DataError]
    lengths: Sequence[int]

    def width(self, length: int) -> int:
        """Return the number of tokens of a row that holds any of them."""
        longest = max(pair.length for pair in self.pairs)
        return min(length, -(-longest // ROW_MULTIPLE) * ROW_MULTIPLE)


def make(rows: Rows, chat: Chat, length: int) -> Pairs:
    """Return the pairs of all rows, at most `length` predictions each; raise DataError."""
    if rows.format != "preference":
        raise DataError(
            f"{rows.uri}: rows are {rows.format}; accepted for dpo: preference (chosen and rejected, with a prompt or "
            "with one beginning); hint: name them in columns.chosen and columns.rejected"
        )

    def pair(row: Row) -> tuple[Pair, int]:
        tokens = pair_tokens(row, chat)
        return _fitted(*tokens, length), max(len(one.ids) for one in tokens)

    made, bad = rows.convert(pair)
    lengths = [count for _, count in made]
    return Pairs([one for one, _ in made], sum(count > length + 1 for count in lengths), bad, lengths)


def pair_tokens(row: Row, chat: Chat) -> tuple[Tokens, Tokens]:
    """Return tokens of the better and the worse conversation; what follows the prompt is learned. Raise DataError."""
    same = takewhile(lambda turns: turns[0] == turns[1], zip(row.messages, row.rejected, strict=False))
    prompt = row.messages[: sum(1 for _ in same)]
    if not prompt or len(prompt) == min(len(row.messages), len(row.rejected)):
        missing = "prompt" if not prompt else "answer in one of the two"
        raise DataError(
            f"{row.where}: no {missing}; accepted: a prompt column, or chosen and rejected that begin alike and end "
            "differently"
        )
    try:
        chosen, rejected = (_answer(prompt, messages, chat, row) for messages in (row.messages, row.rejected))
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from error
    return chosen, rejected


def to_pairs_batch(pairs: Sequence[Pair | None], width: int) -> Batch:
    """Return 2P rows: all chosen, then all rejected, in the same order, each with half the weight of a pair.

    In this order every M-th row, which is what a micro-batch takes, holds whole pairs as long as M divides P. None
    is a pair that does not count: it fills up a batch.
    """
    chosen = [[] if pair is None else [pair.chosen] for pair in pairs]
    rejected = [[] if pair is None else [pair.rejected] for pair in pairs]
    rows = [lay_out(examples, width) for examples in chosen + rejected]
    batch = to_batch({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return batch._replace(weight_BT=loss_weights.row_mean(batch.mask_BT))


def _answer(prompt: Sequence[Message], messages: Sequence[Message], chat: Chat, row: Row) -> Tokens:
    """Return the tokens; the assistant's turns in the prompt are not learned, as both sides share them."""
    tokens = chat.tokens(messages, row.tools)
    before = chat.prompt_ids(prompt, row.tools)
    start = sum(1 for _ in takewhile(lambda ids: ids[0] == ids[1], zip(tokens.ids, before, strict=False)))
    assistant_mask = [is_assistant and i >= max(start, 1) for i, is_assistant in enumerate(tokens.assistant_mask)]
    if not any(assistant_mask):
        raise DataError("the assistant says nothing after the prompt; accepted: an answer on both sides")
    return Tokens(tokens.ids, assistant_mask)


def _fitted(chosen: Tokens, rejected: Tokens, length: int) -> Pair:
    """Cut both to `length` predictions. The answers keep their ends and one token before them to be predicted from."""
    starts = [tokens.assistant_mask.index(True) for tokens in (chosen, rejected)]
    answers = [len(tokens.ids) - start for tokens, start in zip((chosen, rejected), starts, strict=True)]
    room = max(length + 1 - max(answers), 1)
    first, second = (
        _example(tokens, max(start - room, 0), length) for tokens, start in zip((chosen, rejected), starts, strict=True)
    )
    return Pair(first, second)


def _example(tokens: Tokens, begin: int, length: int) -> Example:
    span = slice(begin, begin + length + 1)
    return Example(np.asarray(tokens.ids[span], np.int32), np.asarray(tokens.assistant_mask[span], bool))
