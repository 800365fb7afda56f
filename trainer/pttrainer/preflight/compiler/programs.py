"""The programs of a job: the very functions that training jits, lowered for absent chips.

`passes` lists a job's programs; `rollout_programs` has those of a rollout. A scoring pass takes all rows of the batch
at once, where the step takes micro-batches, so it can need more. Left out: evaluation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh

from pttrainer.preflight.compiler import rollout_programs
from pttrainer.preflight.compiler.abstract_inputs import batch, inputs, model_of, program_of
from pttrainer.preflight.compiler.rollout_programs import Lowered, Programs
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.shapes.passes import ROLLOUT, SCORING, TRAIN_STEP, TRANSFER, scored_rows
from pttrainer.train_step import scoring
from pttrainer.train_step.step import train_step


def shallow(of: JobShapes) -> tuple[JobShapes, JobShapes] | None:
    """Return the job with few layers, and with twice as many; None if the model has few.

    A rollout's programs grow linearly with the layers, and compile layer by layer, which takes minutes at full
    depth.
    """
    config = of.config
    first = config.scans[-1][0].numbers[0]
    kinds = [(group.name, group.config.is_local(place)) for group, place in config.layer_places[first:]]
    period = next(n for n in range(1, len(kinds) + 1) if kinds[n:] == kinds[: len(kinds) - n])
    few = max(period, 2)
    if len(kinds) <= 3 * few:
        return None
    return _with_layers(of, first + few), _with_layers(of, first + 2 * few)


def _with_layers(of: JobShapes, layers: int) -> JobShapes:
    return replace(shapes_of(of.spec, of.config.first_layers(layers), of.slice), sampler=of.sampler, whole=of)


def _train_step(of: JobShapes, mesh: Mesh) -> Programs:
    program = program_of(of)
    step: Any = train_step(program, program.layout(mesh))
    yield Lowered(TRAIN_STEP, step.lower(*inputs(of, mesh)))


def _scoring(of: JobShapes, mesh: Mesh) -> Programs:
    held = inputs(of, mesh)
    if held.state.critic is not None:
        yield Lowered(SCORING, _values(of, mesh))
        return
    step, model = program_of(of), model_of(of)
    score: Any = scoring.score_step(model, step.layout(mesh).whole)
    weights = model.join_params(held.frozen, held.state.params)
    yield Lowered(SCORING, score.lower(weights, batch(of, mesh, scored_rows(of)), step.objective.temperature))


def _values(of: JobShapes, mesh: Mesh) -> Any:
    """Lower the critic's values and the policy's log-probs in one pass, like PPO."""
    program, model = program_of(of), model_of(of)
    held, ppo, learner = inputs(of, mesh), of.spec.algorithm.ppo, program.learner
    assert ppo is not None
    assert learner is not None
    assert held.state.critic is not None
    scored = ppo.updates_per_batch > 1 or ppo.kl_coefficient > 0
    whole = program.layout(mesh).whole
    step: Any = scoring.value_step(model, learner.critic, whole, program.objective.temperature, scored=scored)
    weights = model.join_params(held.frozen, held.state.params)
    return step.lower(weights, held.state.critic.params, batch(of, mesh, scored_rows(of)))


LOWERED: dict[str, Callable[[JobShapes, Mesh], Programs]] = {
    TRAIN_STEP: _train_step,
    SCORING: _scoring,
    TRANSFER: rollout_programs.transferred,
    ROLLOUT: rollout_programs.lowered,
}
