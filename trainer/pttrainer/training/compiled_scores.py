"""What a run computes besides the train step: the scoring pass, and what else compiles before it is needed.

The pass returns log-probs of batches without gradient, for old and reference log-probs and for held-out rows. Its
programs for the batches that an algorithm expects (`HasScores`), and those of functions that it calls itself
(`HasCalls`), are compiled on threads, those of `next_batch` while weights load and the first samples are drawn, those
of evaluations after the train step. For batches of other shapes they are compiled when these come. The programs that
sample an evaluation's answers (`HasAnswers`) are compiled early, too.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pttrainer.algorithms.algorithm import Algorithm, Call, HasAnswers, HasCalls, HasScores
from pttrainer.batch import Batch
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, Params
from pttrainer.runtime.background_compile import BackgroundCompile, EarlyFunction
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step import scoring
from pttrainer.train_step.state import model_params
from pttrainer.training import compiled_steps


class ScoringPass:
    """The pass over batches on the mesh; all processes call it together."""

    def __init__(self, model: Model, mesh: Mesh) -> None:
        step = scoring.score_step(model, sharding.replicated(mesh))
        self.mesh, self._at = mesh, cache(lambda temperature: EarlyFunction(step, (temperature,)))

    def __call__(self, params: Params, batch: Batch, temperature: float) -> TokenStats:
        """Return the log-probs of a batch's targets at a temperature, [B, T] numpy."""
        placed = sharding.put(self.mesh, scoring.scored_parts(batch))
        stats: Any = self._at(temperature)(model_params(params), placed)
        scores: TokenStats = jax.tree.map(np.asarray, stats)
        return scores

    def call(self, params: Params, batch: Batch, temperature: float) -> Call:
        """Return the call that scores a batch of these shapes."""
        shapes = sharding.batch_shapes(self.mesh, scoring.scored_parts(batch))
        return Call(self._at(temperature), (model_params(params), shapes))


def expect_calls(
    algorithm: Algorithm, scores: ScoringPass, params: Params, after: BackgroundCompile | None, *, held_out: bool
) -> BackgroundCompile | None:
    """Begin to compile what the algorithm scores and calls, one program after the other. Return the last one.

    params: all weights that it reads, as shapes with shardings. after: what is compiled before. held_out: what
    `evaluate` needs, else what `next_batch` does.
    """
    if not compiled_steps.is_possible():
        return after
    for function, arguments in _calls(algorithm, scores, params, held_out=held_out):
        after = function.expect(scores.mesh, arguments, after)
    return after


def _calls(algorithm: Algorithm, scores: ScoringPass, params: Params, *, held_out: bool) -> Iterator[Call]:
    if isinstance(algorithm, HasScores):
        for batch in algorithm.expected_scores(held_out=held_out):
            yield scores.call(params, batch, algorithm.temperature)
    if isinstance(algorithm, HasCalls):
        yield from algorithm.expected_calls(params, held_out=held_out)


def expect_answers(algorithm: Algorithm, params: Params, mesh: Mesh, *, is_first: bool) -> BackgroundCompile | None:
    """Begin to compile what evaluations sample with; None if none do, or it is unknown.

    params: all weights, as shapes with shardings. is_first: what the next one begins with, else all that may come.
    """
    evaluation = algorithm.evaluation if isinstance(algorithm, HasAnswers) else None
    early = None if evaluation is None else evaluation.early_programs(is_first=is_first)
    if early is None or not compiled_steps.is_possible():
        return None
    return BackgroundCompile(early, mesh, (params,))
