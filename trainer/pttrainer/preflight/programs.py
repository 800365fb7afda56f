"""The programs of a job: the very functions that training jits, lowered for chips that are not here.

    train step       one optimizer step
    scoring pass     log-probs without gradient: of the reference model, or of the policy before its first update; with
                     a critic, its values too
    rollout          three programs one after the other (`rollouts`)

A scoring pass takes all rows of the batch at once, where the step takes micro-batches, so it can need more. What is
left out: evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh

from pttrainer import step as steps
from pttrainer.algorithms import preference_loss
from pttrainer.preflight import rollouts
from pttrainer.preflight.rollouts import ROLLOUT, Lowered, Programs
from pttrainer.preflight.subject import Subject, batch, inputs, subject

TRAIN_STEP = "train step"
SCORING = "scoring pass"


def others(of: Subject) -> list[str]:
    """What this job runs on its chips beside its step."""
    return [*([SCORING] if scored_rows(of) else []), *([ROLLOUT] if rollouts.samples_rollouts(of) else [])]


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


def shallow(of: Subject) -> tuple[Subject, Subject] | None:
    """The job with few layers, and with twice as many: what a rollout's programs take grows by the same with each
    layer, and they are compiled layer by layer, which at full depth takes minutes. None where the model has few."""
    local = of.config.local_layers
    period = next(n for n in range(1, len(local) + 2) if local[n:] == local[: len(local) - n])
    few = max(period, 2)
    if of.config.layers <= 3 * few:
        return None
    return _with_layers(of, few), _with_layers(of, 2 * few)


def _with_layers(of: Subject, layers: int) -> Subject:
    config = replace(of.config, layers=layers, local_layers=of.config.local_layers[:layers])
    return replace(subject(of.spec, config), sampler=of.sampler, whole=of)


def _train_step(of: Subject, mesh: Mesh) -> Programs:
    yield Lowered(TRAIN_STEP, of.program.train_step(of.program.layout(mesh)).lower(*inputs(of, mesh)))


def _scoring(of: Subject, mesh: Mesh) -> Programs:
    held = inputs(of, mesh)
    if held.state.critic is not None:
        yield Lowered(SCORING, _values(of, mesh))
        return
    score: Any = steps.score_step(of.model, of.program.layout(mesh).whole)
    weights = of.model.whole(held.frozen, held.state.params)
    yield Lowered(SCORING, score.lower(weights, batch(of, mesh, scored_rows(of)), of.program.objective.temperature))


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


LOWERED: dict[str, Callable[[Subject, Mesh], Programs]] = {
    TRAIN_STEP: _train_step,
    SCORING: _scoring,
    ROLLOUT: rollouts.lowered,
}
