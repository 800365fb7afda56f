"""The scoring pass: log-probs of batches without gradient, for old and reference log-probs and for held-out rows.

Its program for the batch that an algorithm expects (`HasScores`) is compiled on a thread, while weights load and the
first samples are drawn, or after the train step where nothing is scored before it. Batches of other shapes are compiled
when they come. So are the programs that sample an evaluation's answers (`HasAnswers`).
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from pttrainer.algorithms.algorithm import Algorithm, HasAnswers, HasScores
from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, Params
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import scoring
from pttrainer.training import compiled_steps
from pttrainer.training.compiled_steps import BackgroundCompile


class ScoringPass:
    """The pass over batches on the mesh; all processes call it together."""

    def __init__(self, model: Model, mesh: Mesh) -> None:
        self._mesh, self._score = mesh, scoring.score_step(model, sharding.replicated(mesh))
        self._expected: BackgroundCompile | None = None
        self._temperature = 0.0

    def __call__(self, params: Params, batch: Batch, temperature: float) -> TokenStats:
        """Return the log-probs of a batch's targets at a temperature, [B, T] numpy."""
        arguments = params, sharding.put(self._mesh, scoring.scored_parts(batch))
        is_expected = self._expected is not None and temperature == self._temperature
        program = self._expected.compiled(arguments) if is_expected and self._expected is not None else None
        stats: Any = self._score(*arguments, temperature) if program is None else program(*arguments)
        scores: TokenStats = jax.tree.map(np.asarray, stats)
        return scores

    def expect(self, algorithm: Algorithm, params: Params, after: BackgroundCompile | None) -> None:
        """Begin to compile what the algorithm will score first. params: all weights, as shapes with shardings.

        after: the train step, if nothing is scored before it.
        """
        batch = algorithm.expected_scores() if isinstance(algorithm, HasScores) else None
        if batch is None or not compiled_steps.is_possible():
            return
        self._temperature = algorithm.temperature
        arguments = params, sharding.batch_shapes(self._mesh, scoring.scored_parts(batch))
        self._expected = BackgroundCompile(_At(self._score, self._temperature), self._mesh, arguments, after)


def expect_answers(algorithm: Algorithm, params: Params, mesh: Mesh, *, is_first: bool) -> BackgroundCompile | None:
    """Begin to compile what evaluations sample with; None if none do, or it is unknown.

    params: all weights, as shapes with shardings. is_first: what the next one begins with, else all that may come.
    """
    evaluation = algorithm.evaluation if isinstance(algorithm, HasAnswers) else None
    early = None if evaluation is None else evaluation.early_programs(is_first=is_first)
    if early is None or not compiled_steps.is_possible():
        return None
    return BackgroundCompile(early, mesh, (params,))


class _At(NamedTuple):
    """The pass at one temperature, which is compiled in."""

    score: Any
    temperature: float

    def lower(self, *arguments: Any) -> Any:
        """Lower the pass for these arguments."""
        return self.score.lower(*arguments, self.temperature)
