"""A teacher behind a service: batches get its likeliest tokens as columns, as rows of offline data have them.

Each example of a row is sent as it is, token by token, and alone: packing changes nothing for the teacher either. Of
several processes the leader asks, and the others receive what came (`leader_messages`), as with rewards.

Letters: B rows, T tokens, K tokens of the teacher, n places in all rows.
"""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from pttrainer.algorithms.distillation.teacher_client import FIELD, TeacherClient, Text
from pttrainer.batch import Batch
from pttrainer.data.distillation.teacher_logprobs import TeacherLogprobs
from pttrainer.rollout.context import Context
from pttrainer.runtime.reporting import spans
from pttrainer.runtime.services.addresses import addresses


class _Place(NamedTuple):
    """An example in a batch: its row, the entries that are learned, and the text that the teacher reads."""

    row: int
    learned: np.ndarray
    text: Text


class TaughtOnce:
    """Batches of an evaluation, taught when the first of them is asked for, and kept: the teacher never changes."""

    def __init__(self, teacher: "ServedTeacher", batches: Iterable[Batch]) -> None:
        self._teacher, self._batches = teacher, batches
        self._taught: list[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._taught is None:
            self._taught = [self._teacher.taught(batch)[0] for batch in self._batches]
        return iter(self._taught)


class ServedTeacher:
    """The teacher as an algorithm has it. service: its name in the job. Raises ConfigError."""

    def __init__(self, context: Context, service: str, top_k: int) -> None:
        self._context, self._top_k, self._has_begun = context, top_k, False
        self._client: TeacherClient | None = None
        if context.leader:
            longest = context.spec.training.sequence_length + 1  # a row's last target stands behind it
            urls = addresses(service, FIELD)
            size = context.model.config.vocab_size
            self._client = TeacherClient(service, urls, top_k, size, longest, context.note)

    def taught(self, batch: Batch) -> tuple[Batch, float]:
        """Return the batch with the teacher's tokens, and the seconds that took. All processes call it together.

        Raises ServiceLost or ConfigError.
        """
        began = time.monotonic()
        places = _places(batch)
        with spans.span("teacher"):
            of_all = self._likeliest(places)
        columns = self.unfilled(batch)
        at = 0
        for place in places:
            here = slice(at, at + len(place.learned))
            columns.teacher_ids_BTK[place.row, place.learned] = of_all.ids[here]
            columns.teacher_logps_BTK[place.row, place.learned] = of_all.logps[here]
            at = here.stop
        return columns, time.monotonic() - began

    def taught_once(self, batches: Iterable[Batch]) -> TaughtOnce:
        """Return the batches of an evaluation, which are taught when they are first asked for."""
        return TaughtOnce(self, batches)

    def unfilled(self, batch: Batch) -> Batch:
        """Return the batch with columns of zeros: its shape is that of a batch that was taught."""
        shape = (*batch.tokens_BT.shape, self._top_k)
        return batch._replace(teacher_ids_BTK=np.zeros(shape, np.int32), teacher_logps_BTK=np.zeros(shape, np.float32))

    def _likeliest(self, places: list[_Place]) -> TeacherLogprobs:
        messages, alive = self._context.messages, self._context.alive
        if self._client is None:
            assert messages is not None
            return self._decoded(messages.receive(alive), sum(len(place.learned) for place in places))
        beat = alive if messages is None else messages.beating(alive)
        if not self._has_begun:
            self._client.begin(self._context.tokenizer, beat)
            self._has_begun = True
        answers = self._client.likeliest([place.text for place in places], beat)
        empty = TeacherLogprobs(np.zeros((0, self._top_k), np.int32), np.zeros((0, self._top_k), np.float32))
        of_all = TeacherLogprobs(*(np.concatenate(parts) for parts in zip(empty, *answers, strict=True)))
        if messages is not None:
            messages.send([of_all.ids.tobytes(), of_all.logps.tobytes()])
        return of_all

    def _decoded(self, body: bytes, count: int) -> TeacherLogprobs:
        numbers = count * self._top_k
        ids, logps = np.frombuffer(body, np.int32, numbers), np.frombuffer(body, np.float32, numbers, 4 * numbers)
        return TeacherLogprobs(ids.reshape(count, self._top_k), logps.reshape(count, self._top_k))


def _places(batch: Batch) -> list[_Place]:
    """Return the examples of which something is learned, row by row."""
    places = []
    for row, segments_T in enumerate(batch.segment_ids_BT):
        for segment in range(1, int(segments_T.max(initial=0)) + 1):
            learned = np.flatnonzero((segments_T == segment) & (batch.mask_BT[row] > 0))
            if not len(learned):
                continue
            first, last = int(np.argmax(segments_T == segment)), int(learned[-1])
            tokens = (*batch.tokens_BT[row, first : last + 1].tolist(), int(batch.targets_BT[row, last]))
            places.append(_Place(row, learned, Text(tokens, tuple((learned - first).tolist()))))
    return places
