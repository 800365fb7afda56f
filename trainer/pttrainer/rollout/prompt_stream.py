"""The prompts of a run in their order: drawn a few at a time, sampled and scored.

A prompt's number is its place in the whole run's order, and its samples' random keys are folded from it. So a
checkpoint keeps only how many were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from pttrainer.data.prompts import Order, Question
from pttrainer.models import Params
from pttrainer.rollout.engine import Draw, Sampling
from pttrainer.rollout.rollout import Rollout
from pttrainer.rollout.sampler import Sampler


class PromptStream:
    """The stream of prompts. prompts: drawn at once; samples: of each; drawn: prompts so far."""

    def __init__(
        self, questions: Sequence[Question], sampler: Sampler, sampling: Sampling, seed: int, prompts: int, samples: int
    ) -> None:
        self._questions, self._order, self._seed = questions, Order(len(questions), seed), seed
        self._sampler, self._sampling = sampler, sampling
        self._prompts, self._samples = prompts, samples
        self.drawn = 0

    @property
    def upcoming(self) -> list[Question]:
        """Return the next prompts without drawing them."""
        return [self._questions[self._order[number]] for number in self._numbers()]

    def draw(self, step: int, weights: Params) -> Rollout:
        """Draw the next prompts, sample and score them. weights: on the sampling devices."""
        numbers, questions = self._numbers(), self.upcoming
        self.drawn += self._prompts
        draw = Draw(self._seed, step)
        return self._sampler.sample(weights, questions, numbers, self._samples, self._sampling, draw)

    def _numbers(self) -> list[int]:
        return list(range(self.drawn, self.drawn + self._prompts))
