"""A request to a model, and its answer while it grows: text, tokens, log-probs, and how it ended.

One thread samples; others read `Answer.state`, which is replaced as a whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pttrainer.batch import Images
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.native.completion_buffer import CompletionBuffer

INCOMPLETE = "\ufffd"
"""What a decoder writes for the first bytes of a character."""


class Request(NamedTuple):
    """A prompt and how its answer is sampled.

    temperature 0: the likeliest token. images: of the prompt. is_raw: the text has special tokens, in which some models
    write calls of tools.
    """

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    images: Images | None = None
    is_raw: bool = False

    @property
    def batch_key(self) -> tuple[float, float]:
        """Return what requests of one batch share: the engine compiles it."""
        return self.temperature, self.top_p


@dataclass(frozen=True)
class State:
    """An answer so far. text: what no later token changes. finish: `stop` or `length`; None while it grows."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    logps: tuple[float, ...] = ()
    finish: str | None = None


class Answer:
    """The answer to one request. notify: called, by the sampling thread, whenever the state is new."""

    def __init__(self, request: Request, tokenizer: Tokenizer, notify: Callable[[], object]) -> None:
        self.request, self.state = request, State()
        self.error: BaseException | None = None
        self.is_cancelled = False
        self._tokenizer, self._notify = tokenizer, notify
        self._buffer = CompletionBuffer(tokenizer, Sampling(request.max_tokens, 0, stop=request.stop), 1)

    @property
    def is_done(self) -> bool:
        """Return True if nothing more comes."""
        return self.is_cancelled or self.error is not None or self.state.finish is not None

    def add(self, tokens_T: np.ndarray, logps_T: np.ndarray) -> None:
        """Add sampled tokens, up to a stop string, an end token or the limit."""
        room = self.request.max_tokens - len(self.state.tokens)
        columns = tokens_T[:room, None], logps_T[:room, None]
        self._buffer.record(*columns, np.zeros_like(columns[0]))
        completions = self._buffer.completions()
        tokens = completions.tokens(0)
        finish = "length" if len(tokens) == self.request.max_tokens else None
        finish = "stop" if completions.ended_N[0] else finish
        text = self._text(tokens, is_final=finish is not None)
        self.state = State(text, tuple(tokens), tuple(completions.logps_NT[0, : len(tokens)].tolist()), finish)
        self._notify()

    def fail(self, error: BaseException) -> None:
        """End the answer with an error."""
        self.error = error
        self._notify()

    def _text(self, tokens: Sequence[int], *, is_final: bool) -> str:
        """Return the text before a stop string; of a growing answer, only what cannot change any more."""
        text = self._decoded(tokens)
        starts = [text.index(string) for string in self.request.stop if string in text]
        if starts:
            return text[: min(starts)]
        return text if is_final else text[: settled(text, self.request.stop)]

    def _decoded(self, tokens: Sequence[int]) -> str:
        if not self.request.is_raw:
            return self._tokenizer.decode(tokens)
        is_ended = tokens and tokens[-1] in self._tokenizer.eos_ids
        return self._tokenizer.decode(tokens[:-1] if is_ended else tokens, skip_special=False)


def settled(text: str, stop: Sequence[str]) -> int:
    """Return the length of the text without an incomplete character and without what may begin a stop string."""
    end = len(text.rstrip(INCOMPLETE))
    longest = max(map(len, stop), default=1)
    starts = range(max(0, end - longest + 1), end)
    return next((start for start in starts if any(string.startswith(text[start:end]) for string in stop)), end)
