"""The scoring pass: log-probs of batches without gradient, for old and reference log-probs and for held-out rows.

Its programs for the batches that an algorithm expects (`HasScores`) are compiled on threads, those that `next_batch`
asks for while weights load and the first samples are drawn, those of evaluations after the train step. Batches of other
shapes are compiled when they come. So are the programs that sample an evaluation's answers (`HasAnswers`).
"""

from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pttrainer.algorithms.algorithm import Algorithm, HasAnswers, HasScores
from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, Params
from pttrainer.runtime.background_compile import BackgroundCompile, EarlyFunction
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import scoring
from pttrainer.training import compiled_steps


class ScoringPass:
    """The pass over batches on the mesh; all processes call it together."""

    def __init__(self, model: Model, mesh: Mesh) -> None:
        step = scoring.score_step(model, sharding.replicated(mesh))
        self._mesh, self._at = mesh, cache(lambda temperature: EarlyFunction(step, (temperature,)))

    def __call__(self, params: Params, batch: Batch, temperature: float) -> TokenStats:
        """Return the log-probs of a batch's targets at a temperature, [B, T] numpy."""
        stats: Any = self._at(temperature)(params, sharding.put(self._mesh, scoring.scored_parts(batch)))
        scores: TokenStats = jax.tree.map(np.asarray, stats)
        return scores

    def expect(
        self, algorithm: Algorithm, params: Params, after: BackgroundCompile | None, *, held_out: bool
    ) -> BackgroundCompile | None:
        """Begin to compile what the algorithm will score, one program after the other. Return the last one.

        params: all weights, as shapes with shardings. after: what is compiled before.
        """
        if not isinstance(algorithm, HasScores) or not compiled_steps.is_possible():
            return after
        for batch in algorithm.expected_scores(held_out=held_out):
            arguments = params, sharding.batch_shapes(self._mesh, scoring.scored_parts(batch))
            after = self._at(algorithm.temperature).expect(self._mesh, arguments, after)
        return after


def expect_answers(algorithm: Algorithm, params: Params, mesh: Mesh, *, is_first: bool) -> BackgroundCompile | None:
    """Begin to compile what evaluations sample with; None if none do, or it is unknown.

    params: all weights, as shapes with shardings. is_first: what the next one begins with, else all that may come.
    """
    evaluation = algorithm.evaluation if isinstance(algorithm, HasAnswers) else None
    early = None if evaluation is None else evaluation.early_programs(is_first=is_first)
    if early is None or not compiled_steps.is_possible():
        return None
    return BackgroundCompile(early, mesh, (params,))
