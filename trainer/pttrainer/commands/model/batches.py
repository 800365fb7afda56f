"""Requests that wait, answered together: one thread samples a batch after the other.

The engine takes a batch as a whole (no row joins one under way), and compiles temperature and top_p, so a batch is the
oldest request and those behind it that share both. Rows are filled up to a power of two and limits rounded up: few
shapes are compiled. An answer depends on its request alone, however it is batched: its random keys come from its seed.
"""

import threading
import time
from collections.abc import Sequence
from typing import Self

import numpy as np

from pttrainer.commands.model.answers import Answer
from pttrainer.commands.model.loaded_model import LoadedModel
from pttrainer.rollout.engine import Draw, Prompt, Sampling

MOST_ROWS = 32
"""Most requests of a batch."""
TOKENS_AT_ONCE = 4
"""Tokens of an answer between two looks at it: what a stream brings at once."""
GATHER_S = 0.005
"""Wait for requests sent at the same time before a batch begins."""
FEWEST_TOKENS = 128
"""The engine's smallest limit here."""


class Batches:
    """A queue of answers to sample, and the thread that samples them while the block runs."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._waiting: list[Answer] = []
        self._changed = threading.Condition()
        self.sizes: list[int] = []
        """Requests of each batch, the newest last; at most a thousand."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="sampling")

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread after its batch: Python must not end while JAX computes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def submit(self, answer: Answer) -> None:
        """Queue an answer."""
        with self._changed:
            self._waiting.append(answer)
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next():
            self.sizes = [*self.sizes[-999:], len(batch)]
            try:
                self._sample(batch)
            except Exception as error:  # a thread that ends would leave its requests waiting: they get the error
                for answer in batch:
                    answer.fail(error)

    def _next(self) -> list[Answer]:
        """Return the next answers to sample; none when the block has ended."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
        if self._is_closed:
            return []
        time.sleep(GATHER_S)
        with self._changed:
            key = self._waiting[0].request.batch_key
            batch = [answer for answer in self._waiting if answer.request.batch_key == key][:MOST_ROWS]
            self._waiting = [answer for answer in self._waiting if answer not in batch]
        return batch

    def _sample(self, batch: Sequence[Answer]) -> None:
        rows = 1 << (len(batch) - 1).bit_length()
        requests = [answer.request for answer in batch]
        filled = [*requests, *requests[-1:] * (rows - len(batch))]
        prompts = [Prompt(request.prompt, request.seed) for request in filled]
        longest = max(FEWEST_TOKENS, *(request.max_tokens for request in requests))
        temperature, top_p = requests[0].batch_key
        sampling = Sampling(
            1 << (longest - 1).bit_length(),
            self._model.length,
            temperature=temperature or 1.0,
            top_p=top_p if temperature else 1.0,
            greedy=temperature == 0.0,
        )
        self._model.engine.generate_into(_Recorder(batch), self._model.weights, prompts, 1, sampling, Draw(0, 0))


class _Recorder:
    """Gives each answer its tokens, and ends the rows whose answer is done."""

    at_once = TOKENS_AT_ONCE

    def __init__(self, batch: Sequence[Answer]) -> None:
        self._batch = batch

    def record(self, tokens_TB: np.ndarray, logps_TB: np.ndarray, owners_TB: np.ndarray) -> list[int]:
        """Return the rows to end: of answers that are done, and those that fill up the batch."""
        ended = []
        for owner in np.unique(owners_TB[owners_TB >= 0]).tolist():
            answer = self._batch[owner] if owner < len(self._batch) else None
            if answer is not None and not answer.is_done:
                is_own_TB = owners_TB == owner
                answer.add(tokens_TB[is_own_TB], logps_TB[is_own_TB])
            if answer is None or answer.is_done:
                ended.append(owner)
        return ended
