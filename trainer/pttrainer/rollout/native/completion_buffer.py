"""The samples so far, on the host: the tokens of every completion, and where each ends.

Stop strings are matched here, in the text. A completion ends with the token that completes one, and keeps it: the model
sampled it. Its text ends with the string (`completion_text`). Rows are checked every few tokens and cut back, so the
time of the check does not change them.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.rollout.engine import Completions, Sampling


class Recorder(Protocol):
    """Takes tokens while they are sampled."""

    @property
    def at_once(self) -> int | None:
        """Return the most tokens of a row between two calls; None for what is fastest."""
        ...

    def record(
        self, tokens_TB: np.ndarray, logps_TB: np.ndarray, owners_TB: np.ndarray, routes_TBLk: np.ndarray | None = None
    ) -> list[int]:
        """Take tokens in time order, and return the completions to end here; owners below 0 are idle rows."""
        ...


class CompletionBuffer:
    """Collects the tokens of N completions."""

    at_once: int | None = None

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        completions: int,
        begun: Sequence[tuple[Sequence[int], Sequence[float]]] = (),
    ) -> None:
        """Begin with no tokens, or with those that each completion has, and their log-probs."""
        self._tokenizer, self._strings = tokenizer, sampling.stop
        self._tokens: list[list[int]] = [[] for _ in range(completions)]
        self._logps: list[list[float]] = [[] for _ in range(completions)]
        for completion, (tokens, logps) in enumerate(begun):
            self._tokens[completion], self._logps[completion] = list(tokens), list(logps)
        self._routes: list[list[np.ndarray]] = [[] for _ in range(completions)]
        self._stopped: set[int] = set()

    def record(
        self, tokens_TB: np.ndarray, logps_TB: np.ndarray, owners_TB: np.ndarray, routes_TBLk: np.ndarray | None = None
    ) -> list[int]:
        """Append tokens in time order, and return the completions that a stop string ends here.

        Owners below 0 are idle rows. routes_TBLk: the tokens' experts, if they are recorded.
        """
        is_sampled_TB = owners_TB >= 0
        owners = owners_TB[is_sampled_TB]
        if not owners.size:
            return []
        order = np.argsort(owners, kind="stable")  # by completion, and in time
        tokens, logps = tokens_TB[is_sampled_TB][order], logps_TB[is_sampled_TB][order]
        routes = None if routes_TBLk is None else routes_TBLk[is_sampled_TB][order]
        completions_B, starts = np.unique(owners[order], return_index=True)
        ended = []
        for completion, start, end in zip(completions_B.tolist(), starts, [*starts[1:], len(order)], strict=True):
            if completion in self._stopped:
                continue
            if routes is not None:
                self._routes[completion].append(routes[start:end])
            if self._add(completion, tokens[start:end], logps[start:end]):
                ended.append(completion)
        self._stopped.update(ended)
        return ended

    def completions(self) -> Completions:
        """Return all completions, padded to the longest."""
        lengths_N = np.array([len(tokens) for tokens in self._tokens], np.int32)
        shape = len(self._tokens), max(1, int(lengths_N.max(initial=0)))
        tokens_NT, logps_NT = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for row, (tokens, logps) in enumerate(zip(self._tokens, self._logps, strict=True)):
            tokens_NT[row, : len(tokens)], logps_NT[row, : len(tokens)] = tokens, logps
        ended_N = [
            row in self._stopped or (tokens[-1:] != [] and tokens[-1] in self._tokenizer.eos_ids)
            for row, tokens in enumerate(self._tokens)
        ]
        return Completions(tokens_NT, logps_NT, lengths_N, np.array(ended_N, bool), routes=self._routes_but_last())

    def _routes_but_last(self) -> list[np.ndarray] | None:
        """Return the experts of each completion's tokens but its last; None if they are not recorded."""
        if not any(self._routes):
            return None
        none = next(parts[0][:0] for parts in self._routes if parts)
        counts = [max(len(tokens) - 1, 0) for tokens in self._tokens]
        return [np.concatenate((none, *parts))[:n] for parts, n in zip(self._routes, counts, strict=True)]

    def _add(self, completion: int, new_tokens: np.ndarray, logps: np.ndarray) -> bool:
        """Append tokens; return True if a stop string is found, and drop what follows it."""
        tokens, checked = self._tokens[completion], len(self._tokens[completion])
        tokens += new_tokens.tolist()
        self._logps[completion] += logps.tolist()
        end = self._first_end(tokens, checked)
        if end:
            del tokens[end:], self._logps[completion][end:]
        return end > 0

    def _first_end(self, tokens: Sequence[int], checked: int) -> int:
        """Return the length of the shortest prefix with a stop string, or 0; `checked` tokens hold none."""
        if not self._strings or not self._holds(tokens):
            return 0
        return next(end for end in range(checked + 1, len(tokens) + 1) if self._holds(tokens[:end]))

    def _holds(self, tokens: Sequence[int]) -> bool:
        text = self._tokenizer.decode(tokens)
        return any(string in text for string in self._strings)
