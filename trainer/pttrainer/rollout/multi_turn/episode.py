"""One conversation between model and environment: its tokens, which of them were sampled, and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pttrainer.batch import Images
from pttrainer.data.prompts import Question
from pttrainer.rewards.runner import Scores
from pttrainer.rollout.groups import EpisodeInfo, Sample


@dataclass
class Episode:
    """A conversation in progress. prompt: tokens before the first turn, and its images; the lists: tokens after it.

    cut: the last turn, if it was cut and the environment has not read it.
    routes: the experts of the tokens from the first on, as the pass that first computed a token chose them.
    """

    question: Question
    prompt: list[int]
    images: Images | None = None
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    transcript: list[dict[str, Any]] = field(default_factory=list)
    reward: float = 0.0
    seconds: float = 0.0
    turns: int = 0
    calls: int = 0
    failed: int = 0
    ended: bool = False
    error: str = ""
    is_lost: bool = False
    cut: str | None = None
    is_open: bool = True
    routes: np.ndarray | None = None

    @property
    def ids(self) -> list[int]:
        """Return all tokens so far."""
        return [*self.prompt, *self.tokens]

    @property
    def answer(self) -> str:
        """Return the model's last turn."""
        return next((str(m["content"]) for m in reversed(self.transcript) if m["role"] == "assistant"), "")

    def add(self, tokens: Sequence[int], logps: Sequence[float], *, sampled: bool) -> None:
        """Append tokens."""
        self.tokens += tokens
        self.logps += logps
        self.sampled += [sampled] * len(tokens)

    def close(self, *, ended: bool = False, error: str = "", is_lost: bool = False) -> None:
        """End the episode. is_lost: the error is that of a service that may come back."""
        self.is_open, self.ended, self.error, self.is_lost = False, ended, error, is_lost


def as_sample(episode: Episode, scores: Scores, row: int) -> Sample:
    """Return a finished episode with its scores, of this row, as the trainer's sample."""
    return Sample(
        tokens=episode.tokens,
        logps=np.array(episode.logps, np.float32),
        ended=episode.ended,
        text=episode.answer,
        rewards={name: float(values[row]) for name, values in scores.rewards.items()},
        reward=float(scores.total[row]),
        episode=EpisodeInfo(
            episode.prompt,
            episode.sampled,
            episode.transcript,
            episode.turns,
            episode.calls,
            episode.failed,
            episode.error,
            None if episode.images is None else episode.images.slots_BT[0],
            episode.is_lost,
        ),
        routes=episode.routes,
    )
