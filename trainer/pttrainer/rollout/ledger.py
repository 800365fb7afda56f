"""What has been sampled so far, on the host: which row says which completion, and where each ends.

Stop strings are found here, in the text. A completion ends with the token that completes one, and keeps it: it
is what the model said. Rows are looked at every few tokens and cut back, so when they were looked at does not
change them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pttrainer.rollout.decoding import Chunk
from pttrainer.rollout.protocol import Completions, Sampling
from pttrainer.tokenizer import Tokenizer


class Ledger:
    """Collects the tokens of N completions from the rows that sample them."""

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, completions: int) -> None:
        self._tokenizer, self._strings = tokenizer, sampling.stop
        self._tokens: list[list[int]] = [[] for _ in range(completions)]
        self._logps: list[list[float]] = [[] for _ in range(completions)]
        self._ended = np.zeros(completions, bool)
        self._of_row: dict[int, int] = {}

    def begin(self, row: int, completion: int) -> None:
        """From now on this row says this completion."""
        self._of_row[row] = completion

    def record(self, chunk: Chunk) -> np.ndarray:
        """Adds the tokens of a chunk; returns the rows in which a stop string was found, [B]."""
        stopped_B = np.zeros(len(chunk.taken_B), bool)
        for row in np.flatnonzero(chunk.taken_B):
            completion, taken = self._of_row[int(row)], int(chunk.taken_B[row])
            tokens, seen = self._tokens[completion], len(self._tokens[completion])
            tokens += chunk.tokens_BC[row, :taken].tolist()
            self._logps[completion] += chunk.logps_BC[row, :taken].tolist()
            self._ended[completion] = chunk.ended_B[row]
            end = self._first_end(tokens, seen)
            if end:
                del tokens[end:], self._logps[completion][end:]
                self._ended[completion] = stopped_B[row] = True
        return stopped_B

    def completions(self) -> Completions:
        """All completions, padded to the longest."""
        lengths_N = np.array([len(tokens) for tokens in self._tokens], np.int32)
        shape = len(self._tokens), max(1, int(lengths_N.max(initial=0)))
        tokens_NT, logps_NT = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for row, (tokens, logps) in enumerate(zip(self._tokens, self._logps, strict=True)):
            tokens_NT[row, : len(tokens)], logps_NT[row, : len(tokens)] = tokens, logps
        return Completions(tokens_NT, logps_NT, lengths_N, self._ended)

    def _first_end(self, tokens: Sequence[int], seen: int) -> int:
        """The shortest prefix that holds a stop string, or 0; the first `seen` tokens hold none."""
        if not self._strings or not self._holds(tokens):
            return 0
        return next(end for end in range(seen + 1, len(tokens) + 1) if self._holds(tokens[:end]))

    def _holds(self, tokens: Sequence[int]) -> bool:
        text = self._tokenizer.decode(tokens)
        return any(string in text for string in self._strings)
