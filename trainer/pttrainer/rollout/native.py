"""The engine that samples with the training model itself: same weights, same layers, a cache of keys and values.

Letters: P prompts, G samples per prompt, B rows, N = P·G completions.

Two ways through the same compiled functions (`decoding`):

- All at once, where N rows fit the memory for them: a prompt is computed once and its G samples read one copy.
- Refilled, where they do not: B rows; one that ends is taken over by the next sample at once, with a copy of
  its prompt, which is computed once for all G samples.

The cache begins small and grows with the longest row, because a token costs what is allocated. A row's random
numbers come from its own key, so a sample is the same in any batch, either way, and after a restart. Left
out: prompts longer than one prefill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pttrainer import sharding
from pttrainer.models import Model, ModelConfig, Params
from pttrainer.rollout.decoding import Chunk, Decoding, Padded, Prefilled, Rows, jitted
from pttrainer.rollout.ledger import Ledger
from pttrainer.rollout.protocol import Completions, Draw, Prompt, Sampling
from pttrainer.tokenizer import Tokenizer

FIRST_SLOTS = 128
CACHE_BYTES = 2 * 2**30
"""Memory for keys and values per device, where the device does not say how much it has."""
CACHE_SHARE = 0.3
"""Share of a device's memory for keys and values."""
STOP_CHECK_TOKENS = 16
"""How often the host looks for stop strings; the samples do not depend on it."""


class NativeEngine:
    """Batched sampling with `model`. `place` and `fetch` move arrays between this host and the mesh.

    mesh: where weights are spread for decoding; unset, they stay where they are. rows: most rows at once;
    unset, what fits the memory.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        place: Callable[[Any], Any] = jax.device_put,
        fetch: Callable[[Any], Any] = jax.device_get,
        mesh: Mesh | None = None,
        rows: int | None = None,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._place, self._fetch, self._rows = place, fetch, rows
        where = None if mesh is None else decoding_shardings(model, mesh)
        self._weights = jax.jit(model.for_decoding, out_shardings=where)

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """`samples` completions of each prompt."""
        ledger = Ledger(self._tokenizer, sampling, len(prompts) * samples)
        run = _Run(self, self._weights(params), sampling, draw, ledger)
        longest = max(len(prompt.tokens) for prompt in prompts) + sampling.max_new_tokens
        most = self._rows or rows_that_fit(self._model, longest)
        if len(prompts) * samples <= most:
            run.all_at_once(prompts, samples)
        else:
            run.refilled(prompts, samples, most)
        return ledger.completions()

    def compiled(self, sampling: Sampling) -> dict[str, Any]:
        """The compiled functions for this way of sampling."""
        how = replace(sampling, stop=(), max_length=0, max_new_tokens=0)  # what the compiled functions depend on
        return _compiled(self._model, self._tokenizer.eos_ids, how)


@lru_cache(maxsize=16)
def _compiled(model: Model, eos_ids: tuple[int, ...], how: Sampling) -> dict[str, Any]:
    return jitted(Decoding(model, eos_ids, how))


class _Run:
    """One call of `generate`: what goes to the devices, and what comes back."""

    def __init__(self, engine: NativeEngine, weights: Params, sampling: Sampling, draw: Draw, ledger: Ledger) -> None:
        self._engine, self._weights, self._sampling, self._ledger = engine, weights, sampling, ledger
        self._functions = engine.compiled(sampling)
        self._keys = np.uint32(draw.seed), np.uint32(draw.step)
        self._slots = min(FIRST_SLOTS, sampling.max_new_tokens)

    def all_at_once(self, prompts: Sequence[Prompt], samples: int) -> None:
        """N rows; the prompts' keys and values are shared."""
        prefilled = self._prefill(prompts, slots_for(max(len(prompt.tokens) for prompt in prompts)))
        rows, chunk = self._functions["spread"](samples, self._slots, self._weights, prefilled, *self._keys)
        for row in range(len(prompts) * samples):
            self._ledger.begin(row, row)
        rows, chunk = self._record(rows, chunk)
        while chunk.active_B.any():
            rows, chunk = self._advance(rows, chunk, floor=0)

    def refilled(self, prompts: Sequence[Prompt], samples: int, most: int) -> None:
        """B rows, taken over one after the other."""
        waiting = _Waiting(prompts, samples, batch=max(1, most // samples))
        slots = slots_for(max(len(prompt.tokens) for prompt in prompts))
        nobody = [Prompt([0], 0)] * most
        idle = self._prefill(nobody, slots, is_idle=True)
        rows, chunk = self._functions["spread"](1, self._slots, self._weights, idle, *self._keys)
        prefilled = idle
        active_B: Any = np.zeros(most, bool)
        while active_B.any() or waiting:
            while waiting and not active_B.all():
                if waiting.needs_prefill:
                    prefilled = self._prefill(waiting.next_batch(), slots)
                rows, chunk = self._admit(rows, prefilled, waiting, np.flatnonzero(~active_B))
                active_B = chunk.active_B
            # Each row that ends is worth a refill only with some others: taking over costs about a token's time.
            rows, chunk = self._advance(rows, chunk, floor=most - max(1, most // 16) if waiting else 0)
            active_B = chunk.active_B

    def _prefill(self, prompts: Sequence[Prompt], slots: int, *, is_idle: bool = False) -> Prefilled:
        padded = _right_padded(prompts, slots, self._sampling, self._engine._tokenizer.pad_id)
        if is_idle:
            padded = padded._replace(limits_P=np.zeros_like(padded.limits_P))
        prefilled: Prefilled = self._functions["prefill"](self._weights, self._engine._place(padded))
        return prefilled

    def _admit(self, rows: Rows, prefilled: Prefilled, waiting: _Waiting, free: np.ndarray) -> tuple[Rows, Chunk]:
        """Free rows take over samples of the prompts that are computed."""
        B = len(rows.last_B)
        places_A, sources_A, samples_A = (np.zeros(B, np.int32) for _ in range(3))
        count = 0
        for row in free:
            if waiting.needs_prefill:
                break
            places_A[count], (sources_A[count], samples_A[count], completion) = row, waiting.take()
            self._ledger.begin(int(row), completion)
            count += 1
        entries = (places_A, sources_A, samples_A, np.int32(count))
        return self._record(*self._functions["admit"](self._weights, rows, prefilled, *entries, *self._keys))

    def _advance(self, rows: Rows, chunk: Chunk, floor: int) -> tuple[Rows, Chunk]:
        rows, free_slots = self._with_room(rows, int(chunk.clock), int(chunk.oldest))
        until = min(free_slots, STOP_CHECK_TOKENS) if self._sampling.stop else free_slots
        return self._record(*self._functions["advance"](self._weights, rows, np.int32(until), np.int32(floor)))

    def _with_room(self, rows: Rows, index: int, oldest: int) -> tuple[Rows, int]:
        """Rows with free slots, and how many. Slots are forgotten where that frees half of them, else added."""
        if index < self._slots:
            return rows, self._slots - index
        drop = oldest if oldest * 2 >= self._slots else 0
        if not drop:
            self._slots = 2 * self._slots
        return self._functions["room"](self._slots, rows, np.int32(drop)), self._slots - index + drop

    def _record(self, rows: Rows, chunk: Chunk) -> tuple[Rows, Chunk]:
        """Hands the tokens to the ledger; rows in which it finds a stop string are ended."""
        chunk = self._engine._fetch(chunk)
        stopped_B = self._ledger.record(chunk)
        if stopped_B.any():
            left_B = chunk.active_B & ~stopped_B
            rows = self._functions["stop"](rows, self._engine._place(left_B))
            chunk = chunk._replace(active_B=left_B)
        return rows, chunk


class _Waiting:
    """Samples that have no row yet, prompt by prompt; prompts are computed `batch` at a time."""

    def __init__(self, prompts: Sequence[Prompt], samples: int, batch: int) -> None:
        self._batches = deque(list(prompts[start : start + batch]) for start in range(0, len(prompts), batch))
        self._samples, self._batch, self._first = samples, batch, 0
        self._ready: Iterator[tuple[int, int, int]] = iter(())
        self._left = len(prompts) * samples
        self._left_ready = 0

    def __bool__(self) -> bool:
        return self._left > 0

    @property
    def needs_prefill(self) -> bool:
        """No computed prompt has samples left."""
        return self._left_ready == 0

    def next_batch(self) -> list[Prompt]:
        """The next prompts to compute; the last batch is filled up, so that all have one shape."""
        prompts = self._batches.popleft()
        first, self._first = self._first, self._first + len(prompts)
        self._left_ready = len(prompts) * self._samples
        self._ready = (
            (p, g, (first + p) * self._samples + g) for p in range(len(prompts)) for g in range(self._samples)
        )
        return prompts + [prompts[-1]] * (self._batch - len(prompts))

    def take(self) -> tuple[int, int, int]:
        """The next sample: its prompt's place in the batch, its number in its group, its completion's row."""
        self._left, self._left_ready = self._left - 1, self._left_ready - 1
        return next(self._ready)


@lru_cache(maxsize=16)
def decoding_shapes(model: Model) -> Params:
    """Shapes of `for_decoding`'s weights."""
    shapes: Params = jax.eval_shape(model.for_decoding, model.abstract())
    return shapes


def decoding_shardings(model: Model, mesh: Mesh) -> Any:
    """Where rollouts want `for_decoding`'s weights: whole over `fsdp`, gathered once per rollout: else
    every token would gather every layer again."""
    axes, shapes = model.logical_axes(), dict(decoding_shapes(model))

    def whole(axes: Any, *, without_layer: bool) -> Any:
        def one(of_weight: tuple[str | None, ...]) -> tuple[str | None, ...]:
            return tuple(None if axis in ("embed", "expert_embed") else axis for axis in of_weight[without_layer:])

        return jax.tree.map(one, axes, is_leaf=lambda x: isinstance(x, tuple))

    layer = sharding.weight_shardings(mesh, shapes["layers"][0], whole(axes.pop("layers"), without_layer=True))
    layers = (layer,) * len(shapes.pop("layers"))
    return {**sharding.weight_shardings(mesh, shapes, whole(axes, without_layer=False)), "layers": layers}


def rows_that_fit(model: Model, tokens: int) -> int:
    """Rows of this length whose keys and values fit the memory for them, on all devices together."""
    per_row = token_bytes(model) * tokens
    stats = jax.local_devices()[0].memory_stats() or {}
    per_device = int(stats["bytes_limit"] * CACHE_SHARE) if "bytes_limit" in stats else CACHE_BYTES
    is_shared_memory = jax.default_backend() == "cpu"
    return max(1, per_device * (1 if is_shared_memory else jax.device_count()) // per_row)


def token_bytes(model: Model) -> int:
    """Keys and values of one token, all layers."""
    config: ModelConfig = model.config
    bytes_each = 2 if model.compute_dtype == "bfloat16" else 4
    return 2 * config.layers * config.kv_heads * config.head_dim * bytes_each


def _right_padded(prompts: Sequence[Prompt], slots: int, sampling: Sampling, pad_id: int) -> Padded:
    lengths_P = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    tokens_PS = np.full((len(prompts), slots), pad_id, np.int32)
    for row, prompt in enumerate(prompts):
        tokens_PS[row, : len(prompt.tokens)] = prompt.tokens
    limits_P = np.minimum(sampling.max_new_tokens, sampling.max_length - lengths_P).astype(np.int32)
    return Padded(tokens_PS, lengths_P, np.array([prompt.number for prompt in prompts], np.uint32), limits_P)


def slots_for(tokens: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, 128, …: few enough that few shapes are compiled."""
    power = 16
    while power < tokens:
        if power * 3 // 2 >= tokens:
            return power * 3 // 2
        power *= 2
    return power
