"""The programs of a job: the very functions that training jits, lowered for chips that are not here.

    train step       one optimizer step
    scoring pass     log-probs without gradient: of the reference model, or of the policy before its first update; with
                     a critic, its values too

A scoring pass takes all rows of the batch at once, where the step takes micro-batches, so it can need more. What is
left out: rollouts (computed in `outside`), evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from pttrainer import step as steps
from pttrainer.algorithms import preference_loss
from pttrainer.preflight.subject import Subject, batch, inputs

TRAIN_STEP = "train step"
SCORING = "scoring pass"


def others(of: Subject) -> list[str]:
    """What this job runs on its chips beside its step and rollouts."""
    return [SCORING] if scored_rows(of) else []


def scored_rows(of: Subject) -> int:
    """Rows of a scoring pass; 0 where the job has none."""
    algorithm = of.spec.algorithm
    if algorithm.ppo is not None:  # the critic is always asked before the first update
        return of.spec.training.batch_size
    if algorithm.grpo is not None and (algorithm.grpo.beta > 0 or algorithm.grpo.updates_per_batch > 1):
        return of.spec.training.batch_size
    if algorithm.dpo is not None and preference_loss.VARIANTS[algorithm.dpo.loss].needs_reference:
        # As many as the data have; here, more than fit one pass (`Context.rows_at_once`).
        return math.ceil(of.spec.evaluation.batch_size / of.row_shards) * of.row_shards
    return 0


def _train_step(of: Subject, mesh: Mesh) -> Any:
    return of.program.train_step(of.program.layout(mesh)).lower(*inputs(of, mesh))


def _scoring(of: Subject, mesh: Mesh) -> Any:
    held = inputs(of, mesh)
    if held.state.critic is not None:
        return _values(of, mesh)
    score: Any = steps.score_step(of.model, of.program.layout(mesh).whole)
    weights = of.model.whole(held.frozen, held.state.params)
    return score.lower(weights, batch(of, mesh, scored_rows(of)), of.program.objective.temperature)


def _values(of: Subject, mesh: Mesh) -> Any:
    """The critic's values and the policy's log-probs in one pass, as PPO asks for them."""
    held, ppo, learner = inputs(of, mesh), of.spec.algorithm.ppo, of.program.learner
    assert ppo is not None
    assert learner is not None
    assert held.state.critic is not None
    scored = ppo.updates_per_batch > 1 or ppo.kl_coefficient > 0
    whole = of.program.layout(mesh).whole
    step: Any = steps.value_step(of.model, learner.critic, whole, of.program.objective.temperature, scored=scored)
    weights = of.model.whole(held.frozen, held.state.params)
    return step.lower(weights, held.state.critic.params, batch(of, mesh, scored_rows(of)))


LOWERED: dict[str, Callable[[Subject, Mesh], Any]] = {TRAIN_STEP: _train_step, SCORING: _scoring}
