"""The engine that samples with the training model itself: same weights, same layers, a cache of keys and values.

Letters: P prompts, G samples per prompt, B rows, N = P·G completions.

Two ways through the same compiled functions (`decode_loop`):

- All at once, if there are as many rows as completions: a prompt is computed once and its G samples read one copy.
- Refilled, if there are fewer: a row that ends takes over the next sample at once, with a copy of its prompt, which is
  computed once for all G samples.

The cache begins small and grows with the oldest row, because a token costs what is allocated. A row's random numbers
come from its own key, so a sample is the same in any batch, either way, and after a restart. With speculation rows
sample several tokens in a pass; the samples are the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.models import Model, Params
from pttrainer.models.decoding.block_head import split_block
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native import buckets, cache_layout
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.native.completion_buffer import CompletionBuffer, Recorder
from pttrainer.rollout.native.decode_loop import DISPATCH_TOKENS, Decoding, jitted
from pttrainer.rollout.native.decode_state import NO_OWNER, DecodeProgress, Pool, Rows
from pttrainer.rollout.native.decoding_weights import Call, DecodingWeights
from pttrainer.rollout.native.prefill import PromptBatch, prompt_batches, right_padded
from pttrainer.rollout.native.prefix_reuse.kept_prompts import KeptPrompts
from pttrainer.rollout.native.sizes import max_rows
from pttrainer.rollout.speculative.block_proposals import Block, for_sampling
from pttrainer.rollout.speculative.verify import Proposer, Speculation, add_counts, count_proposals
from pttrainer.runtime.distributed import sharding

STOP_CHECK_TOKENS = 16
"""Tokens between the host's checks for stop strings; the samples do not depend on it."""


class NativeEngine:
    """Batched sampling with `model`. `place` and `fetch` move arrays between this host and the mesh.

    mesh: where weights are spread for decoding, known to `place`; its devices are those that train, in their order
    (`sampler_mesh`); unset, weights stay where they are. rows: most rows at once; unset, `max_rows` decides.
    speculation: how tokens are proposed; unset, they are not. delivered: weights arrive as `for_decoding` makes
    them, already in place. keeps_prompts: prompts are computed by pages, which later calls use until `forget`. share:
    which part of a job's slices there is; no device has more rows than it would have on all.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        place: Callable[[Any], Any] = jax.device_put,
        fetch: Callable[[Any], Any] = jax.device_get,
        mesh: Mesh | None = None,
        rows: int | None = None,
        speculation: Speculation | None = None,
        *,
        delivered: bool = False,
        keeps_prompts: bool = False,
        share: Fraction = Fraction(1),
    ) -> None:
        self._speculation = speculation
        self._model, self.tokenizer = model, tokenizer
        self.place, self.fetch, self.mesh, self.pad_id = place, fetch, mesh, tokenizer.pad_id
        self._rows, self._share = rows, share
        self._row_shards, self._tensor = (
            1 if mesh is None else sharding.mesh_size(mesh, axis) for axis in ("batch", "mlp")
        )
        self._weights = _as_given if delivered else DecodingWeights(model, mesh)
        self._kept = KeptPrompts(model, self._row_shards) if keeps_prompts else None

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """Sample `samples` completions of each prompt."""
        buffer = CompletionBuffer(self.tokenizer, sampling, len(prompts) * samples)
        prompt_routes: list[np.ndarray] = []
        facts = self.generate_into(buffer, params, prompts, samples, sampling, draw, prompt_routes)
        done = buffer.completions()._replace(facts=facts)
        return done if done.routes is None else done._replace(prompt_routes=prompt_routes)

    def generate_into(
        self,
        buffer: Recorder,
        params: Params,
        prompts: Sequence[Prompt],
        samples: int,
        sampling: Sampling,
        draw: Draw,
        prompt_routes: list[np.ndarray] | None = None,
    ) -> Mapping[str, float]:
        """Sample likewise, and give the tokens to a buffer while they come. Return the facts of `Completions`.

        prompt_routes: where the experts of the prompts are put, if they are recorded.
        """
        params, block = split_block(params)
        weights = self.for_decoding(params)
        with self.on_mesh():
            run = _Run(self, weights, self._proposing(block), prompts, samples, sampling, draw, buffer)
            run.kept = self._kept_for(params, prompts, samples, sampling)
            run.sample(self._most_rows_of(prompts, samples, sampling))
        if prompt_routes is not None:
            prompt_routes += run.prompt_routes
        return run.facts

    @property
    def is_foreseeable(self) -> bool:
        """Return True if the programs of a call follow from the lengths of its prompts (`foresee`)."""
        is_block = self._speculation is not None and isinstance(self._speculation.proposer, Block)
        return isinstance(self._weights, DecodingWeights) and self._kept is None and not is_block

    def foresee(
        self,
        params: Params,
        prompts: Sequence[Prompt],
        samples: int,
        sampling: Sampling,
        call: Call,
        *,
        all_sizes: bool,
    ) -> None:
        """Give the jitted functions that `generate` calls first to a compiler, in the order of their calls.

        params: shapes with shardings. all_sizes: give also those that it calls if rows become fewer or longer.
        """
        assert isinstance(self._weights, DecodingWeights)
        weights, buffer = self._weights(params, call), CompletionBuffer(self.tokenizer, sampling, 0)
        with self.on_mesh():
            run = _Run(self, weights, self._proposing(None), prompts, samples, sampling, Draw(0, 0), buffer)
            run.foresee(self._most_rows_of(prompts, samples, sampling), call, all_sizes=all_sizes)

    def for_decoding(self, params: Params) -> Params:
        """Return the weights as the compiled functions read them."""
        return self._weights(params)

    def _proposing(self, block: Params | None) -> tuple[Params | None, ...]:
        """Return the proposer's weights as the compiled functions' last argument; nothing without speculation.

        An argument only where there is speculation: else nothing differs from a program that knows none.
        """
        if self._speculation is None:
            return ()
        if block is None:
            return (self._speculation.weights,)
        return (for_sampling(block, self._model.compute_dtype, self.mesh),)

    def on_mesh(self) -> Any:
        """Return the context in which the compiled functions run."""
        return nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def forget(self) -> None:
        """Free the pages of prompts that are kept for later calls."""
        if self._kept is not None:
            self._kept.forget()

    def _kept_for(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling
    ) -> KeptPrompts | None:
        """Return the pages for these prompts; None if they are computed whole: with images, or experts recorded."""
        if self._kept is None or sampling.routes or any(prompt.images is not None for prompt in prompts):
            return None
        rows = self.share_of(len(prompts) * samples)
        longest = max(sampling.max_length, *(len(prompt.tokens) for prompt in prompts))
        return self._kept if self._kept.open(self.compiled(sampling), params, rows, longest) else None

    def compiled(self, sampling: Sampling) -> dict[str, Any]:
        """Return the compiled functions for these sampling parameters."""
        how = replace(sampling, stop=(), max_length=0, max_new_tokens=0)  # what the compiled functions depend on
        proposer = None if self._speculation is None else self._speculation.proposer
        return _compiled(self._model, self.tokenizer.eos_ids, how, sharding.chip()[1], proposer)

    @property
    def _ahead(self) -> int:
        """Return the tokens beyond a row's own that are in the cache for a while."""
        return 0 if self._speculation is None else self._speculation.proposer.tokens

    def most_rows(self, longest: int) -> int:
        """Return the most rows at once for this many tokens each, equally many on every device."""
        draft = None if self._speculation is None else self._speculation.draft
        most = self._rows or max_rows.rows_at_once(self._model, longest, draft)
        return buckets.even_rows(self._model, most, self._row_shards, self._tensor)

    def _most_rows_of(self, prompts: Sequence[Prompt], samples: int, sampling: Sampling) -> int:
        """Return the most rows at once for a call's samples."""
        most = self.most_rows(max(len(prompt.tokens) for prompt in prompts) + sampling.max_new_tokens + self._ahead)
        return min(most, self.share_of(len(prompts) * samples))

    def share_of(self, rows: int) -> int:
        """Return how many rows are here if so many are on all slices, and no device has more of them."""
        if self._share == 1:
            return rows
        return math.ceil(rows * self._share / self._row_shards) * self._row_shards


def _as_given(params: Params) -> Params:
    return params


@lru_cache(maxsize=16)
def _compiled(
    model: Model, eos_ids: tuple[int, ...], how: Sampling, device_kind: str, proposer: Proposer | None
) -> dict[str, Any]:
    return jitted(Decoding(model, eos_ids, how, proposer), device_kind)


class _Run:
    """One call of `generate`: its inputs on the devices, and its results."""

    def __init__(
        self,
        engine: NativeEngine,
        weights: Params,
        draft: tuple[Params | None, ...],
        prompts: Sequence[Prompt],
        samples: int,
        sampling: Sampling,
        draw: Draw,
        buffer: Recorder,
    ) -> None:
        self._draft = draft
        self._engine, self._weights, self._sampling, self._buffer = engine, weights, sampling, buffer
        self._prompts, self._samples = prompts, samples
        self._functions = engine.compiled(sampling)
        self._keys = np.uint32(draw.seed), np.uint32(draw.step)
        self._prompt_slots = slots_for(max(len(prompt.tokens) for prompt in prompts))
        self._most_slots = slots_for(sampling.max_new_tokens + engine._ahead)
        self._slots = min(buckets.FIRST_SLOTS, self._most_slots)
        self.kept: KeptPrompts | None = None
        self.facts: dict[str, float] = {}
        self.prompt_routes: list[np.ndarray] = []

    def sample(self, most: int) -> None:
        """Sample in as many rows as there are samples, or in the most that there may be."""
        if self._fits(most):
            self.all_at_once()
        else:
            self.refilled(most)

    def all_at_once(self) -> None:
        """Sample in N rows; the prompts' keys and values are shared."""
        self._finish(self._spread(), None)

    def foresee(self, most: int, call: Call, *, all_sizes: bool) -> None:
        """Give the functions that `sample` calls to a compiler."""
        self._functions = {name: partial(call, function) for name, function in self._functions.items()}
        rows, pool = self._begun(most)
        if all_sizes:
            self._foresee_sizes(rows, pool)
        else:
            self._foresee_tokens(rows, pool)

    def _begun(self, most: int) -> tuple[Rows, Pool | None]:
        """Return rows for the first prompts, and the pool that they take over from."""
        if self._fits(most):
            return self._spread(), None
        return self._idle(most)[:2]

    def _fits(self, most: int) -> bool:
        """Return True if all samples have rows at once."""
        return len(self._prompts) * self._samples <= most

    def _idle(self, most: int) -> tuple[Rows, Pool, deque[PromptBatch]]:
        """Return B idle rows, the first prompts, which they take over from, and the prompts that wait."""
        at_once = buckets.prompts_for(most, self._samples, self._engine._row_shards, self._engine._tensor)
        waiting = prompt_batches(self._prompts, self._samples, at_once)
        pool = self._prefill(waiting.popleft())
        return self._functions["idle"](most, self._slots, pool), pool, waiting

    def _foresee_sizes(self, rows: Rows, pool: Pool | None) -> None:
        """Foresee rows that become fewer, and get more slots."""
        waiting, known = deque([(rows, pool, self._slots)]), {(rows.active_B.shape[0], self._slots)}
        while waiting:
            rows, pool, slots = waiting.popleft()
            rows = self._foresee_tokens(rows, pool)
            count = rows.active_B.shape[0]
            fewer, more = buckets.fewer_rows(count, self._engine._row_shards), min(2 * slots, self._most_slots)
            changes: list[tuple[Rows, Pool | None, int]] = []
            if fewer:
                changes.append((self._functions["shrink"](fewer, rows), None, slots))
            if more > slots:
                changes.append((self._functions["grow"](more, rows), pool, more))
            for changed in changes:
                size = changed[0].active_B.shape[0], changed[2]
                if size not in known:
                    known.add(size)
                    waiting.append(changed)

    def _foresee_tokens(self, rows: Rows, pool: Pool | None) -> Rows:
        """Foresee what samples tokens; its own results may have other shardings than the rows that it began with."""
        advance = partial(self._functions["advance"], self._weights)
        counts = np.int32(0), np.int32(0)
        advanced, *_ = advance(rows, pool, *counts, *self._draft)
        left: Rows = advance(advanced, pool, *counts, *self._draft)[0]
        if self._sampling.stop:
            self._functions["stop"](left, self._engine.place(np.zeros(left.active_B.shape, bool)))
        return left

    def _spread(self) -> Rows:
        """Return N rows; the prompts' keys and values are shared."""
        [batch] = prompt_batches(self._prompts, self._samples, len(self._prompts))
        rows: Rows = self._functions["spread"](self._samples, self._slots, self._prefill(batch))
        of_prompt = cache_layout.capacity(rows.cache) - self._slots
        self._slots += of_prompt
        self._most_slots += of_prompt
        return rows

    def refilled(self, most: int) -> None:
        """Sample in B rows that are taken over in turn. The next prompts are computed when a row waits for them."""
        rows, pool, waiting = self._idle(most)
        while waiting:
            rows, progress = self._advance(rows, pool, floor=most - 1)
            if progress.drawn == waiting[0].first and not progress.active_B.all():
                pool = self._prefill(waiting.popleft())
        self._finish(rows, pool)

    def _finish(self, rows: Rows, pool: Pool | None) -> None:
        """Sample until all are done, in fewer rows when few are left."""
        end = len(self._prompts) * self._samples
        active = count = len(rows.active_B)
        drawn = 0
        while active or drawn < end:
            floor = buckets.fewer_rows(count, self._engine._row_shards)
            if drawn == end and active <= floor:
                rows, pool, count = self._functions["shrink"](floor, rows), None, floor
                continue
            rows, progress = self._advance(rows, pool, floor=floor)
            active, drawn = int(progress.active_B.sum()), int(progress.drawn)

    def _prefill(self, batch: PromptBatch) -> Pool:
        padded = right_padded(batch.prompts, self._prompt_slots, self._sampling, self._engine.pad_id)
        placed = self._engine.place(padded)
        draw = *self._keys, np.int32(batch.first), np.int32(batch.end), *self._draft
        pool: Pool
        if self.kept is None:
            pool = self._functions["prefill"](self._samples, self._weights, placed, *draw)
            if pool.routes_PSLk is not None:
                self._record_prompts(batch, self._engine.fetch(pool.routes_PSLk))
            return pool._replace(routes_PSLk=None)
        cache, hidden_PD, counts = self.kept.compute(self._functions, self._weights, batch.prompts, self._prompt_slots)
        self.facts = add_counts(self.facts, counts)
        pool = self._functions["pool"](self._samples, cache, hidden_PD, placed, *draw)
        return pool

    def _record_prompts(self, batch: PromptBatch, routes_PSLk: np.ndarray) -> None:
        """Keep the experts of a batch's own prompts, which others may fill up."""
        own = batch.prompts[: (batch.end - batch.first) // self._samples]
        self.prompt_routes += [routes_PSLk[p, : len(prompt.tokens)] for p, prompt in enumerate(own)]

    def _advance(self, rows: Rows, pool: Pool | None, floor: int) -> tuple[Rows, DecodeProgress]:
        """Sample some more tokens; end rows in which a stop string is found."""
        lines = STOP_CHECK_TOKENS if self._sampling.stop else DISPATCH_TOKENS * (1 + self._engine._ahead)
        lines = min(lines, self._buffer.at_once or lines)
        counts = np.int32(lines), np.int32(floor)
        rows, *answer = self._functions["advance"](self._weights, rows, pool, *counts, *self._draft)
        sampled, progress = self._engine.fetch(tuple(answer))
        tokens_TB, logps_TB, owners_TB = (x[: int(sampled.count)] for x in sampled[:3])
        routes_TBLk = None if sampled.routes_TBLk is None else sampled.routes_TBLk[: int(sampled.count)]
        stopped = self._buffer.record(tokens_TB, logps_TB, owners_TB, routes_TBLk)
        if self._engine._ahead:
            proposal_counts = count_proposals(
                np.asarray(sampled.owners_TB[: int(sampled.count)]) != NO_OWNER, self._engine._ahead
            )
            self.facts = add_counts(self.facts, proposal_counts)
        if stopped:
            left_B = progress.active_B & ~np.isin(progress.owners_B, stopped)
            rows = self._functions["stop"](rows, self._engine.place(left_B))
            progress = progress._replace(active_B=left_B)
        if progress.age >= self._slots:
            self._slots = min(2 * self._slots, self._most_slots)
            rows = self._functions["grow"](self._slots, rows)
        return rows, progress
