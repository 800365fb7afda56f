"""Rows that go on with what each sample has, until a batch is complete.

A sample's tokens so far are computed anew with the weights at hand, as the end of its prompt, and the row goes on from
there: with the sample's own key, at the place in it where it was. So no row reads keys or values of other weights, a
token's log-prob is exactly that of one version of the policy, and nothing but tokens has to be kept between calls.

Samples that have most wait first, then groups in their order. The host gives free rows the next ones whenever an eighth
of the rows is free, and counts complete groups after so many tokens that the longest sample takes `CHECKS` of them:
both follow from the samples, and never from the clock.

Letters: B rows, P prompts, G samples per prompt.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pttrainer.models import Params
from pttrainer.rollout.disaggregated.in_flight.unfinished import Goal, PartialSample, UnfinishedGroup
from pttrainer.rollout.engine import SamplerWeights, Sampling
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.native.completion_buffer import CompletionBuffer
from pttrainer.rollout.native.decode_loop import DISPATCH_TOKENS
from pttrainer.rollout.native.decode_state import NO_OWNER, Pool, Rows
from pttrainer.rollout.native.native_engine import NativeEngine
from pttrainer.rollout.native.prefill import PaddedPrompts

CHECKS = 16
"""How often the host looks while the longest completion is sampled."""
FEWEST_SLOTS = 32
"""Slots of short prompts."""


class _Part(NamedTuple):
    """A sample to go on with: its prompt, its number in the group, and what it has."""

    group: UnfinishedGroup
    number: int
    sample: PartialSample

    @property
    def prefix(self) -> list[int]:
        """Return the prompt and the tokens so far."""
        return [*self.group.question.tokens, *self.sample.tokens]


class _Waiting(NamedTuple):
    """Samples whose prompts are computed together. samples: G where all of a prompt begin, else 1."""

    parts: list[_Part]
    samples: int


def go_on(
    engine: NativeEngine,
    params: Params,
    version: int,
    groups: Sequence[UnfinishedGroup],
    sampling: Sampling,
    seed: int,
    at_once: int,
    is_enough: Callable[[], bool],
) -> None:
    """Sample with these weights, in place, until `is_enough()` or all groups are complete.

    at_once: groups whose samples have rows at a time, if so many fit.
    """
    if is_enough():
        return
    with engine.on_mesh():
        _Run(engine, engine.for_decoding(params), version, groups, sampling, seed, at_once).until(is_enough)


class _Run:
    """One call of `go_on`."""

    def __init__(
        self,
        engine: NativeEngine,
        weights: Params,
        version: int,
        groups: Sequence[UnfinishedGroup],
        sampling: Sampling,
        seed: int,
        at_once: int,
    ) -> None:
        self._engine, self._weights, self._version, self._sampling = engine, weights, version, sampling
        self._functions = engine.compiled(sampling)
        self._keys = np.uint32(seed), np.uint32(0)
        samples = len(groups[0].samples)
        self._longest = _power(max(len(group.question.tokens) for group in groups) + sampling.max_new_tokens)
        rows = min(engine.most_rows(self._longest + sampling.max_new_tokens), at_once * samples)
        self._rows_wanted = rows
        self._waiting = deque(_in_order(groups, max(1, rows // samples)))
        self._parts = [part for waiting in self._waiting for part in waiting.parts]
        self._slots_of_prompts = max(_power(max(len(part.prefix) for part in self._parts)), FEWEST_SLOTS)
        begun = [(part.sample.tokens, part.sample.logps) for part in self._parts]
        self._buffer = CompletionBuffer(engine.tokenizer, sampling, len(self._parts), begun)
        self._most_slots = slots_for(sampling.max_new_tokens)
        self._slots = min(buckets.FIRST_SLOTS, self._most_slots)
        self._lines = min(DISPATCH_TOKENS, max(1, -(-sampling.max_new_tokens // CHECKS)))
        self._rows: Rows | None = None
        self._pool: Pool | None = None
        self._drawn = self._end = 0
        self._active, self._owners = np.zeros(rows, bool), np.full(rows, NO_OWNER)

    def until(self, is_enough: Callable[[], bool]) -> None:
        """Sample until a batch is complete, and leave what was sampled in the samples."""
        self._fill()
        while self._active.any():
            self._advance()
            self._mark_complete()
            if is_enough():
                break
            self._fill()
        self._keep()

    def _fill(self) -> None:
        """Give free rows the next samples."""
        while not self._active.all() and (self._drawn < self._end or self._waiting):
            if self._drawn == self._end:
                self._pool = self._prefill(self._waiting.popleft())
            if self._rows is None:
                self._rows = self._functions["idle"](self._rows_wanted, self._slots, self._pool)
            free = np.flatnonzero(~self._active)[: self._end - self._drawn]
            self._rows = self._functions["take_over"](self._rows, self._pool)
            self._active[free], self._owners[free] = True, self._drawn + np.arange(len(free))
            self._drawn += len(free)

    def _advance(self) -> None:
        """Sample some tokens in every active row."""
        is_left = self._drawn < self._end or bool(self._waiting)
        floor = len(self._active) - max(1, len(self._active) // 8) if is_left else 0
        arguments = self._weights, self._rows, None, np.int32(self._lines), np.int32(floor)
        rows, *answer = self._functions["advance"](*arguments)
        sampled, progress = self._engine.fetch(tuple(answer))
        stopped = self._buffer.record(*(np.asarray(x[: int(sampled.count)]) for x in sampled[:3]))
        self._active, self._owners = np.array(progress.active_B), np.array(progress.owners_B)
        if stopped:
            self._active &= ~np.isin(self._owners, stopped)
            rows = self._functions["stop"](rows, self._engine.place(self._active))
        if progress.age >= self._slots:
            self._slots = min(2 * self._slots, self._most_slots)
            rows = self._functions["grow"](self._slots, rows)
        self._rows = rows

    def _mark_complete(self) -> None:
        active = set(self._owners[self._active].tolist())
        for place, (_, _, sample) in enumerate(self._parts[: self._drawn]):
            sample.is_complete = place not in active

    def _keep(self) -> None:
        """Put what was sampled into the samples."""
        recorded = self._buffer.completions()
        for place, (_, _, sample) in enumerate(self._parts[: self._drawn]):
            sample.tokens = recorded.tokens(place)
            sample.logps = recorded.logps_NT[place, : len(sample.tokens)].tolist()
            sample.versions += [self._version] * (len(sample.tokens) - len(sample.versions))
            sample.ended = sample.is_complete and bool(recorded.ended_N[place])

    def _prefill(self, waiting: _Waiting) -> Pool:
        """Compute prompts, or prompts and what follows them; a few are filled up, so that all have one shape."""
        parts = waiting.parts[:: waiting.samples]
        count = max(1, self._rows_wanted // len(parts[0].group.samples))
        filled = [*parts, *[parts[-1]] * (count - len(parts))]
        lengths_P = np.array([len(part.prefix) for part in filled], np.int32)
        slots = max(_power(int(lengths_P.max())), FEWEST_SLOTS)
        tokens_PS = np.full((count, slots), self._engine.pad_id, np.int32)
        for row, part in enumerate(filled):
            tokens_PS[row, : lengths_P[row]] = part.prefix
        counts_P = np.array([len(part.sample.tokens) for part in filled], np.int32)
        room_P = self._sampling.max_length - (lengths_P - counts_P)
        padded = PaddedPrompts(
            tokens_PS,
            lengths_P,
            np.array([part.group.number for part in filled], np.uint32),
            np.minimum(self._sampling.max_new_tokens, room_P).astype(np.int32),
        )
        if waiting.samples == 1:
            indices_P = np.array([part.number for part in filled], np.int32)
            padded = padded._replace(samples_P=indices_P, counts_P=counts_P)
        first, self._end = self._end, self._end + len(waiting.parts)
        where = *self._keys, np.int32(first), np.int32(self._end)
        pool: Pool = self._functions["prefill"](waiting.samples, self._weights, self._engine.place(padded), *where)
        return pool if slots == self._slots_of_prompts else self._functions["lengthen"](self._slots_of_prompts, pool)


def _in_order(groups: Sequence[UnfinishedGroup], at_once: int) -> list[_Waiting]:
    """Return what is to be sampled: samples with tokens, the longest first, then groups without any.

    at_once: prompts that are computed together, with slots for the longest of them.
    """
    fresh = [group for group in groups if not group.tokens]
    parts = [
        _Part(group, index, sample)
        for group in groups
        if group.tokens
        for index, sample in enumerate(group.samples)
        if not sample.is_complete
    ]
    parts.sort(key=lambda part: -len(part.prefix))
    waiting = [_Waiting(parts[i : i + at_once], 1) for i in range(0, len(parts), at_once)]
    for i in range(0, len(fresh), at_once):
        of_groups = fresh[i : i + at_once]
        parts = [_Part(group, index, sample) for group in of_groups for index, sample in enumerate(group.samples)]
        waiting.append(_Waiting(parts, len(of_groups[0].samples)))
    return waiting


def _power(tokens: int) -> int:
    """Return the next power of two, so that few shapes are compiled."""
    return 1 << (tokens - 1).bit_length()


@runtime_checkable
class Continuing(Protocol):
    """What goes on with rows, here or in pods of their own."""

    def go_on(
        self, weights: SamplerWeights, groups: Sequence[UnfinishedGroup], sampling: Sampling, seed: int, goal: Goal
    ) -> None:
        """Sample with these weights, in place, until the goal is reached. groups: all in flight."""
        ...


class RowsHere:
    """Rows of the native engine in this process. Half of the groups in flight have rows at a time."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine

    def go_on(
        self, weights: SamplerWeights, groups: Sequence[UnfinishedGroup], sampling: Sampling, seed: int, goal: Goal
    ) -> None:
        """Sample with these weights, in place, until the goal is reached."""
        at_once = max(1, len(groups) // 2)
        arguments = weights.params, weights.version, groups, sampling, seed, at_once
        go_on(self._engine, *arguments, lambda: goal.is_reached(groups))


def continuing(engine: Any) -> Continuing:
    """Return what goes on with an engine's rows: the spec's rules made it the native one, here or elsewhere."""
    if isinstance(engine, NativeEngine):
        return RowsHere(engine)
    assert isinstance(engine, Continuing)
    return engine
