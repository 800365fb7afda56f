"""Prompts that are computed only where earlier ones did not: the turns of episodes, and common beginnings.

Sampled tokens are computed again, with the observation behind them, when the next turn begins: what the loop over
tokens has stored of them differs in its last bits, and samples would depend on what was kept
(docs/decisions/0032-kept-prompts-are-computed-by-pages.md).
"""

import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from pttrainer.models import Model, Params
from pttrainer.models.attention.kv_cache import KVCache
from pttrainer.rollout.engine import Prompt
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.buckets import PAGE
from pttrainer.rollout.native.prefix_reuse.page_index import PageIndex, Placed, names_of
from pttrainer.rollout.native.prefix_reuse.page_store import NewPages, PageStore, PromptPages
from pttrainer.rollout.native.sizes import max_rows
from pttrainer.runtime.distributed import sharding

T = TypeVar("T")

GROUPS = 64
"""Most groups of pages in a call of `fill`; one with fewer costs no more than they do."""
PROMPT_TOKENS, REUSED_TOKENS = "prompt_tokens", "prompt_tokens/reused"
"""Counts for the log: tokens of prompts, and how many of them were there already."""


class _Page(NamedTuple):
    """A page to compute: its tokens, where it goes, and the pages before it."""

    tokens: Sequence[int]
    page: int
    before: Sequence[int]


class KeptPrompts:
    """Computes an engine's prompts by pages, and keeps the pages. row_shards: devices that share out the rows."""

    def __init__(self, model: Model, row_shards: int) -> None:
        self._model, self._row_shards = model, row_shards
        self._index = PageIndex(0)
        self._store: PageStore | None = None
        self._weights: list[weakref.ref[Any]] = []

    def open(self, functions: Mapping[str, Any], params: Params, rows: int, longest: int) -> bool:
        """Have pages for so many rows of at most this length, or as many as fit; drop those that are of other weights.

        Return False if not even one row fits: such prompts are not computed by pages.
        """
        pages = buckets.kept_pages(rows, longest, max_rows.pages_that_fit(self._model))
        if not pages:
            return False
        leaves = jax.tree.leaves(params)
        weights = [ref() for ref in self._weights]
        is_same = len(leaves) == len(weights) and all(map(lambda a, b: a is b, leaves, weights))
        if self._store is None or not is_same or self._index.count * PAGE < longest:
            self.forget()
            self._index = PageIndex(pages + -pages % self._row_shards)
            self._store = functions["empty_pages"](self._index.count)
            self._weights = [weakref.ref(leaf) for leaf in leaves]
        return True

    def forget(self) -> None:
        """Drop all pages, and free their memory."""
        self._store = None

    def compute(
        self, functions: Mapping[str, Any], weights: Params, prompts: Sequence[Prompt], slots: int
    ) -> tuple[KVCache, Array, dict[str, float]]:
        """Return the prompts' cache and last states, and the counts for the log."""
        store, self._store = self._store, None  # an error leaves no page behind that is named and not computed
        names = [names_of(prompt.tokens) for prompt in prompts]
        waiting = sorted(range(len(prompts)), key=lambda row: -self._index.kept(names[row]))
        placed: dict[int, Placed] = {}
        copied = None
        while waiting:
            here = self._place(prompts, names, waiting)
            for call in self._calls(prompts, here):
                store = functions["fill_pages"](weights, store, *call)
            copied = functions["copy_pages"](slots, store, _pages(prompts, here, slots), copied)
            waiting = [row for row in waiting if row not in here]
            placed |= here
        self._store = store
        assert copied is not None, "a call has prompts"
        return *copied, _counts(prompts, placed)

    def _place(
        self, prompts: Sequence[Prompt], names: Sequence[Sequence[bytes]], rows: Sequence[int]
    ) -> dict[int, Placed]:
        """Return the pages of as many prompts as the store holds at once."""
        in_use: set[int] = set()
        here: dict[int, Placed] = {}
        for row in rows:
            placed = self._index.place(len(prompts[row].tokens), names[row], in_use)
            if placed is None:
                break
            here[row] = placed
        return here

    def _calls(self, prompts: Sequence[Prompt], here: Mapping[int, Placed]) -> list[tuple[NewPages, np.int32]]:
        """Return the new pages as arguments of `fill`, those of a prompt in order."""
        of_depth: dict[int, list[_Page]] = defaultdict(list)
        for row, (pages, first_new) in here.items():
            tokens = prompts[row].tokens
            for depth in range(first_new, len(pages)):
                own = tokens[depth * PAGE : (depth + 1) * PAGE]
                of_depth[depth].append(_Page(own, pages[depth], pages[:depth]))
        of_program: dict[int, list[Sequence[_Page]]] = defaultdict(list)
        rows = self._row_shards * (1 if sharding.chip()[0] == "cpu" else buckets.PAGES_AT_ONCE)
        for depth in sorted(of_depth):
            of_program[buckets.pages_before(depth)] += _parts(of_depth[depth], rows)
        return [
            (_padded(part, rows, before, self._index.count), np.int32(len(part)))
            for before, groups in of_program.items()
            for part in _parts(groups, GROUPS)
        ]


def with_reused_share(counts: Mapping[str, float]) -> dict[str, float]:
    """Add the share of prompt tokens that were there already; none if prompts are not kept."""
    if not counts.get(PROMPT_TOKENS):
        return dict(counts)
    return {**counts, "prompt_tokens/reused_share": counts[REUSED_TOKENS] / counts[PROMPT_TOKENS]}


def _parts(of: Sequence[T], size: int) -> list[Sequence[T]]:
    return [of[start : start + size] for start in range(0, len(of), size)]


def _padded(groups: Sequence[Sequence[_Page]], rows: int, before: int, nowhere: int) -> NewPages:
    shape = GROUPS, rows
    new = NewPages(
        tokens_MRC=np.zeros((*shape, PAGE), np.int32),
        lengths_MR=np.zeros(shape, np.int32),
        page_MR=np.full(shape, nowhere, np.int32),
        before_MRJ=np.zeros((*shape, before), np.int32),
        depth_MR=np.zeros(shape, np.int32),
    )
    for m, group in enumerate(groups):
        for r, page in enumerate(group):
            new.tokens_MRC[m, r, : len(page.tokens)] = page.tokens
            new.before_MRJ[m, r, : len(page.before)] = page.before
            new.lengths_MR[m, r], new.page_MR[m, r] = len(page.tokens), page.page
            new.depth_MR[m, r] = len(page.before)
    return new


def _pages(prompts: Sequence[Prompt], here: Mapping[int, Placed], slots: int) -> PromptPages:
    lengths_P = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    pages_PJ = np.zeros((len(prompts), -(-slots // PAGE)), np.int32)
    is_here_P = np.zeros(len(prompts), bool)
    for row, (pages, _) in here.items():
        pages_PJ[row, : len(pages)], is_here_P[row] = pages, True
    return PromptPages(pages_PJ, lengths_P, is_here_P)


def _counts(prompts: Sequence[Prompt], placed: Mapping[int, Placed]) -> dict[str, float]:
    """Count each prompt once, also if it fills up a batch."""
    rows = {id(prompt): row for row, prompt in reversed(list(enumerate(prompts)))}.values()
    tokens = [len(prompts[row].tokens) for row in rows]
    reused = [min(placed[row].first_new * PAGE, count) for row, count in zip(rows, tokens, strict=True)]
    return {PROMPT_TOKENS: sum(tokens), REUSED_TOKENS: sum(reused)}
