"""The interface of sampling engines: `generate(params, prompts, sampling) -> tokens, logps`.

Letters: N completions, T new tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pttrainer.batch import Images
from pttrainer.models import Params


@dataclass(frozen=True)
class Sampling:
    """The way the next token is chosen.

    max_new_tokens bounds every completion, max_length prompt and completion together. top_k 0, top_p 1 and min_p 0
    are off. min_new_tokens: no end token before them. Greedy takes the most likely token. stop: strings that end a
    completion, besides the end tokens, wherever they fall between tokens. routes: record the experts of each token.
    """

    max_new_tokens: int
    max_length: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    greedy: bool = False
    routes: bool = False

    @property
    def truncates(self) -> bool:
        """Return True if some tokens are never drawn, however likely they are."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


class Prompt(NamedTuple):
    """A prompt, and the number that its random keys are folded from: same number, same samples.

    images: of the prompt, as a batch of one row.
    """

    tokens: Sequence[int]
    number: int
    images: Images | None = None


class SamplerWeights(NamedTuple):
    """Weights on the devices that sample.

    version: the optimizer steps that made them. identity: uint32 checksums of the trainer's copy
    (`finished_rollouts.corners`), where finished rollouts are kept.
    """

    params: Params
    version: int
    identity: Any = None


class Draw(NamedTuple):
    """What the keys are folded from besides the prompt. step: of the rollout, not of a token."""

    seed: int
    step: int


class Completions(NamedTuple):
    """All samples, prompt by prompt: sample g of prompt p is row p · G + g.

    tokens_NT: the end token included if there is one, and the whole token that completes a stop string, even if the
    string ends inside it (`completion_text` cuts there); entries from lengths_N on are padding. logps_NT: log-probs
    of the tokens at the sampling temperature, before top_k, top_p, min_p or min_new_tokens truncate anything.
    ended_N: True if an end token or a stop string ended the completion, False if it was cut. facts: counts for the
    log; those of several calls add up. routes: the experts of each row's tokens but the last, of which nothing was
    computed, [T - 1, L, k]; prompt_routes: the same of each prompt's tokens, [S, L, k] (`Batch`).
    """

    tokens_NT: np.ndarray
    logps_NT: np.ndarray
    lengths_N: np.ndarray
    ended_N: np.ndarray
    facts: Mapping[str, float] = {}
    routes: Sequence[np.ndarray] | None = None
    prompt_routes: Sequence[np.ndarray] | None = None

    def tokens(self, row: int) -> list[int]:
        """Return the tokens of one completion."""
        return [int(token) for token in self.tokens_NT[row, : self.lengths_N[row]]]

    def routes_of(self, row: int, known: np.ndarray | None = None) -> np.ndarray | None:
        """Return the experts of prompt and completion but its last token. known: those of the first tokens, kept."""
        if self.routes is None or self.prompt_routes is None:
            return None
        prompt = self.prompt_routes[row * len(self.prompt_routes) // len(self.routes)]
        parts = (prompt,) if known is None else (known, prompt[len(known) :])
        return np.concatenate((*parts, self.routes[row]))


class Engine(Protocol):
    """An engine that samples completions."""

    def generate(
        self, params: Params, prompts: Sequence[Prompt], samples: int, sampling: Sampling, draw: Draw
    ) -> Completions:
        """Sample `samples` completions of each prompt; each depends on params, its prompt and its key alone."""
        ...

    def forget(self) -> None:
        """Free what is kept of prompts for later calls, whose prompts may begin with them."""
        ...
