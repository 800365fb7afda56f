"""Preference rows to pairs of examples: one prompt, a better and a worse answer.

The prompt is the common beginning of both conversations; what the assistant says after it is learned. A pair that is
too long loses the beginning of its prompt, the same on both sides; only an answer that is too long by itself loses its
end. A pair with images is not cut: it is a bad row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from pttrainer.batch import Batch, Images
from pttrainer.data import loss_weights
from pttrainer.data.batching import lay_out, to_batch
from pttrainer.data.rows import Row, Rows
from pttrainer.data.sft_examples import Example
from pttrainer.data.sources.images import decoding
from pttrainer.data.sources.images.decoding import CheckedImage
from pttrainer.data.tokenization import row_images
from pttrainer.data.tokenization.chat_template import Chat, Message, Tokens
from pttrainer.data.tokenization.row_images import RowImages
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

    @property
    def images_digest(self) -> str | None:
        """Return a digest of all images' bytes, in the order of the pairs; None if there are none."""
        return decoding.digest(image for pair in self.pairs for image in pair.chosen.images)

    def row_images(self, chat: Chat) -> RowImages | None:
        """Return how rows carry the images of the prompts; None if there are none."""
        return row_images.of_chat(chat, [pair.chosen.images for pair in self.pairs])

    @property
    def longest(self) -> int:
        """Return the number of tokens of the longest answer with its prompt."""
        return max(pair.length for pair in self.pairs)


def make(rows: Rows, chat: Chat, length: int, algorithm: str = "dpo") -> Pairs:
    """Return the pairs of all rows, at most `length` predictions each; raise DataError. algorithm: in messages."""
    if rows.format != "preference":
        raise DataError(
            f"{rows.uri}: rows are {rows.format}; accepted for {algorithm}: preference (chosen and rejected, with a "
            "prompt or with one beginning); hint: name them in columns.chosen and columns.rejected"
        )

    def pair(row: Row) -> tuple[Pair, int]:
        images = decoding.checked(row.images)
        tokens = pair_tokens(row, chat, images)
        longest = max(len(one.ids) for one in tokens)
        if images and longest > length + 1:
            raise DataError(
                f"{row.where}: has {longest} tokens and images, which are not cut; accepted: at most {length + 1}; "
                "hint: raise spec.training.sequenceLength"
            )
        chosen, rejected = (replace(one, images=images) for one in fitted(tokens, length))
        return Pair(chosen, rejected), longest

    made, bad = rows.convert(pair)
    lengths = [count for _, count in made]
    return Pairs([one for one, _ in made], sum(count > length + 1 for count in lengths), bad, lengths)


def pair_tokens(row: Row, chat: Chat, images: Sequence[CheckedImage]) -> tuple[Tokens, Tokens]:
    """Return tokens of the better and the worse conversation; what follows the prompt is learned. Raise DataError.

    images: the row's, which are of the prompt.
    """
    row = replace(row, messages=decoding.sized(row.messages, images), rejected=decoding.sized(row.rejected, images))
    prompt = common_prompt(row)
    chosen, rejected = (answer_tokens(prompt, messages, chat, row) for messages in (row.messages, row.rejected))
    return chosen, rejected


def common_prompt(row: Row) -> Sequence[Message]:
    """Return the turns with which both conversations begin. Raise DataError."""
    same = takewhile(lambda turns: turns[0] == turns[1], zip(row.messages, row.rejected, strict=False))
    prompt = row.messages[: sum(1 for _ in same)]
    if not prompt or len(prompt) == min(len(row.messages), len(row.rejected)):
        missing = "prompt" if not prompt else "answer in one of the two"
        raise DataError(
            f"{row.where}: no {missing}; accepted: a prompt column, or chosen and rejected that begin alike and end "
            "differently"
        )
    return prompt


def to_pairs_batch(pairs: Sequence[Pair | None], width: int, images: RowImages | None = None) -> Batch:
    """Return 2P rows: all chosen, then all rejected, in the same order, each with half the weight of a pair.

    In this order every M-th row, which is what a micro-batch takes, holds whole pairs as long as M divides P. None
    is a pair that does not count: it fills up a batch. images: how rows carry those of the prompts.
    """
    chosen = [None if pair is None else pair.chosen for pair in pairs]
    rejected = [None if pair is None else pair.rejected for pair in pairs]
    batch = answers_batch(chosen + rejected, width)
    return batch if images is None else batch._replace(images=_images(pairs, width, images))


def answers_batch(examples: Sequence[Example | None], width: int) -> Batch:
    """Return a row for each example, whose loss is one number. None is a row that does not count: it fills up."""
    rows = [lay_out([] if example is None else [example], width) for example in examples]
    batch = to_batch({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return batch._replace(weight_BT=loss_weights.row_mean(batch.mask_BT))


def _images(pairs: Sequence[Pair | None], width: int, how: RowImages) -> Images:
    """Return the images of 2P rows, those of a prompt decoded once."""
    examples = [example for side in ("chosen", "rejected") for example in (getattr(pair, side, None) for pair in pairs)]
    slots = np.zeros((len(examples), width), np.int32)
    for row, example in enumerate(examples):
        if example is not None:
            slots[row, : example.length] = how.slots(example.tokens[:-1], example.images)
    pixels = how.pixels_of_rows([() if pair is None else pair.chosen.images for pair in pairs])
    return Images(np.concatenate([pixels, pixels]), slots)


def answer_tokens(prompt: Sequence[Message], messages: Sequence[Message], chat: Chat, row: Row) -> Tokens:
    """Return the tokens; the assistant's turns in the prompt are not learned. Raise DataError."""
    try:
        tokens = chat.tokens(messages, row.tools)
        before = chat.prompt_ids(prompt, row.tools)
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from error
    start = sum(1 for _ in takewhile(lambda ids: ids[0] == ids[1], zip(tokens.ids, before, strict=False)))
    assistant_mask = [is_assistant and i >= max(start, 1) for i, is_assistant in enumerate(tokens.assistant_mask)]
    if not any(assistant_mask):
        raise DataError(f"{row.where}: the assistant says nothing after the prompt; accepted: an answer")
    return Tokens(tokens.ids, assistant_mask)


def fitted(answers: Sequence[Tokens], length: int) -> list[Example]:
    """Cut answers of one prompt to `length` predictions, with the same part of the prompt.

    They keep their ends and one token before them to be predicted from.
    """
    starts = [tokens.assistant_mask.index(True) for tokens in answers]
    longest = max(len(tokens.ids) - start for tokens, start in zip(answers, starts, strict=True))
    room = max(length + 1 - longest, 1)
    return [_example(tokens, max(start - room, 0), length) for tokens, start in zip(answers, starts, strict=True)]


def _example(tokens: Tokens, begin: int, length: int) -> Example:
    span = slice(begin, begin + length + 1)
    return Example(np.asarray(tokens.ids[span], np.int32), np.asarray(tokens.assistant_mask[span], bool))
