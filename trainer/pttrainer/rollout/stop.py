"""Stop strings: found in the text on the host, while the devices sample on.

A completion ends with the token that completes a stop string, and keeps it: it is what the model said. Rows
are looked at every few tokens and cut back, so when they were looked at does not change them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pttrainer.rollout.protocol import Completions
from pttrainer.tokenizer import Tokenizer


class Seeker:
    """Remembers, per row, how far it has looked and where it found a stop string."""

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str], rows: int) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        self._seen_N = np.zeros(rows, np.int64)
        self._cut_N = np.zeros(rows, np.int64)

    def look(self, tokens_NT: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
        """True for rows in which a stop string stands."""
        for row in np.flatnonzero((self._cut_N == 0) & (lengths_N > self._seen_N)):
            tokens = tokens_NT[row, : lengths_N[row]].tolist()
            self._cut_N[row] = self._first_end(tokens, int(self._seen_N[row]))
            self._seen_N[row] = len(tokens)
        return self._cut_N > 0

    def cut(self, completions: Completions) -> Completions:
        """The completions without what was sampled after a stop string."""
        if not self._strings:
            return completions
        self.look(completions.tokens_NT, completions.lengths_N)
        found_N = self._cut_N > 0
        lengths_N = np.where(found_N, self._cut_N, completions.lengths_N).astype(completions.lengths_N.dtype)
        return completions._replace(lengths_N=lengths_N, ended_N=completions.ended_N | found_N)

    def _first_end(self, tokens: list[int], seen: int) -> int:
        """The shortest prefix that holds a stop string, or 0."""
        if not self._holds(tokens):
            return 0
        return next(end for end in range(seen + 1, len(tokens) + 1) if self._holds(tokens[:end]))

    def _holds(self, tokens: list[int]) -> bool:
        text = self._tokenizer.decode(tokens)
        return any(string in text for string in self._strings)
