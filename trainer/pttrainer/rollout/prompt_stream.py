"""The prompts of a run in their order: drawn some at a time, sampled and judged.

A prompt's number is its place in the whole run's order, and its samples' random keys are folded from it. So all that a
checkpoint keeps is how many were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from pttrainer.data.prompts import Order, Question
from pttrainer.models import Params
from pttrainer.rollout.engine import Draw, Sampling
from pttrainer.rollout.sampler import Judged, Sampler


class Deck:
    """prompts: drawn at once; samples: of each. drawn: prompts so far."""

    def __init__(
        self, questions: Sequence[Question], sampler: Sampler, sampling: Sampling, seed: int, prompts: int, samples: int
    ) -> None:
        self._questions, self._order, self._seed = questions, Order(len(questions), seed), seed
        self._sampler, self._sampling = sampler, sampling
        self._prompts, self._samples = prompts, samples
        self.drawn = 0

    @property
    def coming(self) -> list[Question]:
        """The next prompts."""
        return [self._questions[self._order[number]] for number in self._numbers()]

    def draw(self, step: int, weights: Params) -> Judged:
        """The next prompts, for the batch of this step. weights: wherever they sample."""
        numbers, questions = self._numbers(), self.coming
        self.drawn += self._prompts
        draw = Draw(self._seed, step)
        return self._sampler.sample(weights, questions, numbers, self._samples, self._sampling, draw)

    def _numbers(self) -> list[int]:
        return list(range(self.drawn, self.drawn + self._prompts))
