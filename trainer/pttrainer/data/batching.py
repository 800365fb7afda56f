"""Batches of examples: packed rows, shuffled anew each epoch, identical everywhere for the same (seed, step).

A Grain pipeline (source, shuffle, repeat, batch) whose state is checkpointed. Rows are packed once, before the first
step, so the number of steps per epoch is known. Every process builds the whole global batch: it takes a few hundred
kilobytes, and the loss's weights need all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from pttrainer.batch import Batch, Images
from pttrainer.data import loss_weights
from pttrainer.data.packing import best_fit_decreasing
from pttrainer.data.sft_examples import Example
from pttrainer.data.sources.images import decoding
from pttrainer.data.tokenization import row_images
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.row_images import PIXELS, SLOTS


class PackedRows:
    """Random access to rows: each is a list of examples laid out in `width` slots; their images are decoded here."""

    def __init__(self, examples: Sequence[Example], width: int, *, pack: bool, chat: Chat | None = None) -> None:
        self._examples, self.width = examples, width
        lengths = [example.length for example in examples]
        self._rows = best_fit_decreasing(lengths, width) if pack else [[i] for i in range(len(examples))]
        of_rows = [[image for i in row for image in examples[i].images] for row in self._rows]
        self.most_images = max(map(len, of_rows))
        self._images = None if chat is None else row_images.of_chat(chat, of_rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def images_digest(self) -> str | None:
        """Return a digest of all images' bytes, in the order of the examples; None if there are none."""
        return decoding.digest(image for example in self._examples for image in example.images)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        examples = [self._examples[i] for i in self._rows[index]]
        row = lay_out(examples, self.width)
        if self._images is None:
            return row
        return row | self._images.arrays([(one.tokens[:-1], one.images) for one in examples], self.width)

    def __repr__(self) -> str:
        """Return a constant: Grain compares it when it restores its state, so it must not contain an address."""
        return f"PackedRows(rows={len(self._rows)}, width={self.width})"


def lay_out(examples: Sequence[Example], width: int) -> dict[str, np.ndarray]:
    """Return one row: tokens, targets, positions, segment ids (from 1; 0 is padding), mask."""
    row = {name: np.zeros(width, np.int32) for name in ("tokens", "targets", "positions", "segment_ids")}
    row["mask"] = np.zeros(width, np.float32)
    teacher = next((example.teacher for example in examples if example.teacher is not None), None)
    if teacher is not None:
        row["teacher_ids"] = np.zeros((width, teacher.ids.shape[1]), np.int32)
        row["teacher_logps"] = np.zeros((width, teacher.ids.shape[1]), np.float32)
    at = 0
    for segment, example in enumerate(examples, start=1):
        span = slice(at, at + example.length)
        row["tokens"][span] = example.tokens[:-1]
        row["targets"][span] = example.tokens[1:]
        row["positions"][span] = np.arange(example.length)
        row["segment_ids"][span] = segment
        row["mask"][span] = example.learned[1:]
        if example.teacher is not None:
            learned = np.flatnonzero(example.learned[1:]) + at
            row["teacher_ids"][learned], row["teacher_logps"][learned] = example.teacher
        at += example.length
    return row


class Batches:
    """An endless iterator over batches of `rows_per_batch` rows, with state."""

    def __init__(self, rows: PackedRows, rows_per_batch: int, seed: int) -> None:
        self.rows, self._rows_per_batch, self._first = len(rows), rows_per_batch, rows[0]
        # Grain's own endless repetition overflows for some numbers of rows; this many epochs never end either.
        epochs = 2**40 // len(rows)
        dataset = grain.MapDataset.source(rows).seed(seed).shuffle().repeat(epochs).batch(rows_per_batch)
        self._iterator = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)))

    def __next__(self) -> Batch:
        return to_batch(next(self._iterator))

    def foreseen(self) -> Batch:
        """Return a batch with the shapes that all batches have."""
        return to_batch({name: np.stack([x] * self._rows_per_batch) for name, x in self._first.items()})

    def state(self) -> dict[str, Any]:
        """Return the position of the next batch."""
        return dict(self._iterator.get_state())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._iterator.set_state(dict(state))


def to_batch(rows: Mapping[str, np.ndarray]) -> Batch:
    """Stack rows into a batch with the weights of the global token mean."""
    return Batch(
        tokens_BT=rows["tokens"],
        targets_BT=rows["targets"],
        positions_BT=rows["positions"],
        segment_ids_BT=rows["segment_ids"],
        mask_BT=rows["mask"],
        weight_BT=loss_weights.token_mean(rows["mask"]),
        teacher_ids_BTK=rows.get("teacher_ids"),
        teacher_logps_BTK=rows.get("teacher_logps"),
        images=Images(rows[PIXELS], rows[SLOTS]) if PIXELS in rows else None,
    )


def in_order(rows: PackedRows, rows_per_batch: int) -> Iterable[Batch]:
    """Return all rows once, for evaluation; the last batch is filled up with rows that do not count.

    Batches with images are made anew each time: their pixels would fill the memory.
    """
    batches = InOrder(rows, rows_per_batch)
    return batches if rows.most_images else list(batches)


@dataclass(frozen=True)
class InOrder:
    """The batches of an evaluation, each made when it is asked for."""

    rows: PackedRows
    rows_per_batch: int

    def __iter__(self) -> Iterator[Batch]:
        return (self._batch(start) for start in range(0, len(self.rows), self.rows_per_batch))

    def _batch(self, start: int) -> Batch:
        rows, rows_per_batch = self.rows, self.rows_per_batch
        chosen = [rows[i] for i in range(start, min(start + rows_per_batch, len(rows)))]
        chosen += [{name: np.zeros_like(x) for name, x in chosen[0].items()}] * (rows_per_batch - len(chosen))
        return to_batch({name: np.stack([row[name] for row in chosen]) for name in chosen[0]})
