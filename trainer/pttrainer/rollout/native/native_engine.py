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

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pttrainer.batch import Images
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.models import Model, Params
from pttrainer.rollout.engine import Completions, Draw, Prompt, Sampling
from pttrainer.rollout.native import buckets, cache_layout, max_rows
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.native.completion_buffer import CompletionBuffer, Recorder
from pttrainer.rollout.native.decode_loop import DISPATCH_TOKENS, Decoding, jitted
from pttrainer.rollout.native.decode_state import NO_OWNER, DecodeProgress, Pool, Rows
from pttrainer.rollout.native.decoding_weights import DecodingWeights
from pttrainer.rollout.native.prefill import PaddedPrompts, PromptBatch, prompt_batches
from pttrainer.rollout.speculative.verify import Proposer, Speculation, add_counts, count_proposals
from pttrainer.runtime.distributed import sharding

STOP_CHECK_TOKENS = 16
"""Tokens between the host's checks for stop strings; the samples do not depend on it."""


class NativeEngine:
    """Batched sampling with `model`. `place` and `fetch` move arrays between this host and the mesh.

    mesh: where weights are spread for decoding, known to `place`; its devices are those that train, in their order
    (`sampler_mesh`); unset, weights stay where they are. rows: most rows at once; unset, `max_rows` decides.
    speculation: how tokens are proposed; unset, they are not. delivered: weights arrive as `for_decoding` makes
    them, already in place.
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
    ) -> None:
        self._speculation = speculation
        self._model, self._tokenizer = model, tokenizer
        self._place, self._fetch, self._rows = place, fetch, rows
        self._mesh = mesh
        self._row_shards = 1 if mesh is None else sharding.mesh_size(mesh, "batch")
        self._weights = _as_given if delivered else DecodingWeights(model, mesh)

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """Sample `samples` completions of each prompt."""
        buffer = CompletionBuffer(self._tokenizer, sampling, len(prompts) * samples)
        facts = self.generate_into(buffer, params, prompts, samples, sampling, draw)
        return buffer.completions()._replace(facts=facts)

    def generate_into(
        self,
        buffer: Recorder,
        params: Params,
        prompts: Sequence[Prompt],
        samples: int,
        sampling: Sampling,
        draw: Draw,
    ) -> Mapping[str, float]:
        """Sample likewise, and give the tokens to a buffer while they come. Return the facts of `Completions`."""
        weights = self._weights(params)
        with nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
            run = _Run(self, weights, prompts, samples, sampling, draw, buffer)
            most = self._most_rows(
                max(len(prompt.tokens) for prompt in prompts) + sampling.max_new_tokens + self._ahead
            )
            if len(prompts) * samples <= most:
                run.all_at_once()
            else:
                run.refilled(most)
        return run.facts

    def compiled(self, sampling: Sampling) -> dict[str, Any]:
        """Return the compiled functions for these sampling parameters."""
        how = replace(sampling, stop=(), max_length=0, max_new_tokens=0)  # what the compiled functions depend on
        proposer = None if self._speculation is None else self._speculation.proposer
        return _compiled(self._model, self._tokenizer.eos_ids, how, sharding.chip()[1], proposer)

    @property
    def _ahead(self) -> int:
        """Return the tokens beyond a row's own that are in the cache for a while."""
        return 0 if self._speculation is None else self._speculation.proposer.tokens

    def _most_rows(self, longest: int) -> int:
        """Return the most rows at once, equally many on every device."""
        draft = None if self._speculation is None else self._speculation.draft
        most = self._rows or max_rows.rows_at_once(self._model, longest, draft)
        return max(most - most % self._row_shards, 1)


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
        prompts: Sequence[Prompt],
        samples: int,
        sampling: Sampling,
        draw: Draw,
        buffer: Recorder,
    ) -> None:
        self._engine, self._weights, self._sampling, self._buffer = engine, weights, sampling, buffer
        self._prompts, self._samples = prompts, samples
        self._functions = engine.compiled(sampling)
        self._keys = np.uint32(draw.seed), np.uint32(draw.step)
        self._prompt_slots = slots_for(max(len(prompt.tokens) for prompt in prompts))
        self._most_slots = slots_for(sampling.max_new_tokens + engine._ahead)
        self._slots = min(buckets.FIRST_SLOTS, self._most_slots)
        # As more arguments only where there is speculation: else nothing differs from a program that knows none.
        self._draft = () if engine._speculation is None else (engine._speculation.weights,)
        self.facts: dict[str, float] = {}

    def all_at_once(self) -> None:
        """Sample in N rows; the prompts' keys and values are shared."""
        [batch] = prompt_batches(self._prompts, self._samples, len(self._prompts))
        rows = self._functions["spread"](self._samples, self._slots, self._prefill(batch))
        of_prompt = cache_layout.capacity(rows.cache) - self._slots
        self._slots += of_prompt
        self._most_slots += of_prompt
        self._finish(rows, None)

    def refilled(self, most: int) -> None:
        """Sample in B rows that are taken over in turn. The next prompts are computed when a row waits for them."""
        waiting = prompt_batches(self._prompts, self._samples, max(1, most // self._samples))
        batch = waiting.popleft()
        pool = self._prefill(batch)
        rows = self._functions["idle"](most, self._slots, pool)
        while waiting:
            rows, progress = self._advance(rows, pool, floor=most - 1)
            if progress.drawn == batch.end and not progress.active_B.all():
                batch = waiting.popleft()
                pool = self._prefill(batch)
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
        padded = _right_padded(batch.prompts, self._prompt_slots, self._sampling, self._engine._tokenizer.pad_id)
        sample_range = np.int32(batch.first), np.int32(batch.end)
        placed = self._engine._place(padded)
        pool: Pool = self._functions["prefill"](
            self._samples, self._weights, placed, *self._keys, *sample_range, *self._draft
        )
        return pool

    def _advance(self, rows: Rows, pool: Pool | None, floor: int) -> tuple[Rows, DecodeProgress]:
        """Sample some more tokens; end rows in which a stop string is found."""
        lines = STOP_CHECK_TOKENS if self._sampling.stop else DISPATCH_TOKENS * (1 + self._engine._ahead)
        lines = min(lines, self._buffer.at_once or lines)
        counts = np.int32(lines), np.int32(floor)
        rows, *answer = self._functions["advance"](self._weights, rows, pool, *counts, *self._draft)
        sampled, progress = self._engine._fetch(tuple(answer))
        stopped = self._buffer.record(*(x[: int(sampled.count)] for x in sampled[:3]))
        if self._engine._ahead:
            proposal_counts = count_proposals(
                np.asarray(sampled.owners_TB[: int(sampled.count)]) != NO_OWNER, self._engine._ahead
            )
            self.facts = add_counts(self.facts, proposal_counts)
        if stopped:
            left_B = progress.active_B & ~np.isin(progress.owners_B, stopped)
            rows = self._functions["stop"](rows, self._engine._place(left_B))
            progress = progress._replace(active_B=left_B)
        if progress.age >= self._slots:
            self._slots = min(2 * self._slots, self._most_slots)
            rows = self._functions["grow"](self._slots, rows)
        return rows, progress


def _right_padded(prompts: Sequence[Prompt], slots: int, sampling: Sampling, pad_id: int) -> PaddedPrompts:
    lengths_P = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    tokens_PS = np.full((len(prompts), slots), pad_id, np.int32)
    for row, prompt in enumerate(prompts):
        tokens_PS[row, : len(prompt.tokens)] = prompt.tokens
    limits_P = np.minimum(sampling.max_new_tokens, sampling.max_length - lengths_P).astype(np.int32)
    numbers_P = np.array([prompt.number for prompt in prompts], np.uint32)
    return PaddedPrompts(tokens_PS, lengths_P, numbers_P, limits_P, _images(prompts, slots))


def _images(prompts: Sequence[Prompt], slots: int) -> Images | None:
    """Return the images of all prompts, padded to as many slots; None if no prompt has any."""
    of_prompts = [prompt.images for prompt in prompts]
    shapes = [each.pixels_BMSSC.shape[1:] for each in of_prompts if each is not None]
    if not shapes:
        return None
    pixels = np.zeros((len(prompts), max(shape[0] for shape in shapes), *shapes[0][1:]), np.float32)
    slots_PS = np.zeros((len(prompts), slots), np.int32)
    for row, each in enumerate(of_prompts):
        if each is not None:
            pixels[row, : each.pixels_BMSSC.shape[1]] = each.pixels_BMSSC[0]
            slots_PS[row, : each.slots_BT.shape[1]] = each.slots_BT[0]
    return Images(pixels, slots_PS)
