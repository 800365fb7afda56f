"""Rows that go on sampling while prompts come, one by one: continuous batching for a server.

The compiled functions are those of a rollout (`decode_loop`): a prompt is computed when a row is free, and that row
takes it over before the next token. So a request waits for no other one's end, and its samples are those that it would
get alone. There are few rows while few are asked for, and more while all are busy: a token costs what all rows cost.

Left out: speculation, whose rows have clocks of their own.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np

from pttrainer.models import Params
from pttrainer.rollout.engine import Prompt, Sampling
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.native.decode_state import NO_OWNER, Pool, Rows
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.native.prefill import PaddedPrompts, padded_images

_SIZES = (1, 8, 32)
"""Numbers of rows: few, because each is compiled. The last is the most that may be asked for."""
FIRST_SLOTS = 512
"""Slots of rows for tokens of their own, at first."""
FEWEST_SLOTS = 32
"""Slots of a short prompt while it is computed."""


class Tokens(NamedTuple):
    """Tokens of a dispatch: [T, B], in lines; owners_TB: the numbers that `add` gave, or NO_OWNER."""

    tokens_TB: np.ndarray
    logps_TB: np.ndarray
    owners_TB: np.ndarray


class RunningRows:
    """Rows for prompts of up to `prompt_slots` tokens, sampled alike. most: rows at the same time."""

    def __init__(self, engine: NativeEngine, weights: Params, sampling: Sampling, prompt_slots: int, most: int) -> None:
        self._engine, self._weights, self._sampling, self._most = engine, weights, sampling, most
        self._functions = engine.compiled(sampling)
        self._prompt_slots = prompt_slots
        self._most_slots = slots_for(sampling.max_length)
        self._slots = min(FIRST_SLOTS, self._most_slots)
        self._rows: Rows | None = None
        self._active, self._owners = np.zeros(0, bool), np.zeros(0, np.int32)
        self._added = 0

    @property
    def active(self) -> int:
        """Return the number of prompts that are being answered."""
        return int(self._active.sum())

    @property
    def has_room(self) -> bool:
        """Return True if one more prompt may be added."""
        return self.active < self._most

    def add(self, prompt: Prompt, limit: int) -> int:
        """Compute a prompt, and let a row take it over. limit: most new tokens.

        Return the number by which `advance` and `stop` name it. Prompts are computed one by one: together they would
        have many more shapes to compile.
        """
        number = self._added
        with self._mesh():
            pool = self._prefill(prompt, limit)
            self._fit(self.active + 1, pool)
            self._rows = self._functions["take_over"](self._rows, pool)
        free = int(np.argmin(self._active))
        self._active[free], self._owners[free] = True, number
        self._added += 1
        return number

    def advance(self, lines: int) -> Tokens:
        """Sample up to `lines` tokens in every row."""
        with self._mesh():
            rows, *answer = self._functions["advance"](self._weights, self._rows, None, np.int32(lines), np.int32(0))
            sampled, progress = self._engine.fetch(tuple(answer))
            self._rows, self._active, self._owners = rows, np.array(progress.active_B), np.array(progress.owners_B)
            if progress.age >= self._slots:
                self._slots = min(2 * self._slots, self._most_slots)
                self._rows = self._functions["grow"](self._slots, rows)
        return Tokens(*(np.asarray(x[: int(sampled.count)]) for x in sampled[:3]))

    def stop(self, numbers: Sequence[int]) -> None:
        """End the rows of these prompts."""
        left_B = self._active & ~np.isin(self._owners, numbers)
        if (left_B != self._active).any():
            with self._mesh():
                self._rows = self._functions["stop"](self._rows, self._engine.place(left_B))
            self._active = left_B

    def _fit(self, wanted: int, pool: Pool) -> None:
        """Have as many rows as are wanted, or the next of few sizes, and not many more."""
        count = min(self._most, next(size for size in _SIZES if size >= wanted))
        if self._rows is None:
            self._rows = self._functions["idle"](count, self._slots, pool)
            self._active, self._owners = np.zeros(count, bool), np.full(count, NO_OWNER)
        elif count > len(self._active):
            self._rows = self._functions["widen"](count, self._rows)
            more = count - len(self._active)
            self._active = np.append(self._active, np.zeros(more, bool))
            self._owners = np.append(self._owners, np.full(more, NO_OWNER))
        elif count < len(self._active):
            order = np.argsort(~self._active, kind="stable")[:count]
            self._rows = self._functions["shrink"](count, self._rows)
            self._active, self._owners = self._active[order], self._owners[order]

    def _prefill(self, prompt: Prompt, limit: int) -> Pool:
        length = len(prompt.tokens)
        slots = min(max(FEWEST_SLOTS, 1 << (length - 1).bit_length()), self._prompt_slots)
        tokens_1S = np.full((1, slots), self._engine.pad_id, np.int32)
        tokens_1S[0, :length] = prompt.tokens
        number, most = np.array([prompt.number], np.uint32), np.array([limit], np.int32)
        images = padded_images([prompt], slots)
        padded = self._engine.place(PaddedPrompts(tokens_1S, np.array([length], np.int32), number, most, images))
        draw = np.uint32(0), np.uint32(0), np.int32(self._added), np.int32(self._added + 1)
        pool: Pool = self._functions["prefill"](1, self._weights, padded, *draw)
        return pool if slots == self._prompt_slots else self._functions["lengthen"](self._prompt_slots, pool)

    def _mesh(self) -> Any:
        return nullcontext() if self._engine.mesh is None else jax.set_mesh(self._engine.mesh)
