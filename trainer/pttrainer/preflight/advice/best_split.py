"""The split between chips that train and chips that sample that wastes least, in chip-seconds of a step by the formula.

Of samplers with pods of their own, their number; of a job's chips, the share that samples, or that all of them do both.
A split is named where it fits and saves something worth a change. Left out: staleness, which a split allows and one
side alone does not need; chips of other kinds.
"""

from collections.abc import Iterator
from dataclasses import replace

from ptapi.accelerators.trainer_sampler_split import parts_of
from ptapi.errors import SpecError
from ptapi.spec import PostTrainJobSpec
from ptapi.spec.rollouts.rollout import MAX_REPLICAS
from pttrainer.errors import ConfigError
from pttrainer.preflight.advice import changes
from pttrainer.preflight.advice.changes import Settings
from pttrainer.preflight.memory import formula, recomputation
from pttrainer.preflight.shapes.job_shapes import JobShapes, shapes_of
from pttrainer.preflight.timing.step_time import estimate

WORTH_SAYING = 0.05
"""Share of a step's chip-seconds that another split must save to be named."""
SHARES = 16
"""Most shares of a job's chips that are tried."""
COLOCATED: Settings = {"rollout.placement": "colocated", "rollout.samplerShare": None}


def notes(of: JobShapes, spec: PostTrainJobSpec) -> list[str]:
    """Return a line with the split that wastes least, or nothing: for jobs with chips that only sample.

    spec: the job's own, which may leave to preflight what `of` has settled for its split.
    """
    if of.sampler is None:
        return []
    tried = list(_replicas(of) if of.samplers is not None else _shares(of, spec))
    name, best = min(tried, key=lambda one: _chip_seconds(one[1]), default=("", of))
    if _chip_seconds(best) > (1 - WORTH_SAYING) * _chip_seconds(of):
        return []
    return [
        f"{name} wastes least: {estimate(best, None).seconds:.3g} s/step on {best.held_chips} chips instead of "
        f"{estimate(of, None).seconds:.3g} on {of.held_chips}, by the formula"
    ]


def _replicas(of: JobShapes) -> Iterator[tuple[str, JobShapes]]:
    """Yield the job with other numbers of samplers: powers of two."""
    assert of.samplers is not None
    for count in (2**power for power in range(MAX_REPLICAS.bit_length())):
        yield f"rollout.separate.replicas: {count}", replace(of, samplers=replace(of.samplers, slices=count))


def _shares(of: JobShapes, spec: PostTrainJobSpec) -> Iterator[tuple[str, JobShapes]]:
    """Yield the job with other shares of its chips that sample, and colocated, where it is valid and fits."""
    parts = parts_of(of.slice)
    shares = [round(k / parts, 4) for k in range(1, parts, max(1, parts // SHARES))]
    settings: list[tuple[str, Settings]] = [
        (f"rollout.samplerShare: {share:g}", {"rollout.samplerShare": share}) for share in shares
    ]
    lag = {} if spec.rollout.in_flight_updates else {"rollout.maxStaleness": 0}
    for name, one in [*settings, ("rollout.placement: colocated", COLOCATED | lag)]:
        try:
            tried = recomputation.settled(shapes_of(changes.changed(spec, one), of.config))
        except (ConfigError, SpecError, ValueError):
            continue
        if formula.memory(tried).fits:
            yield name, tried


def _chip_seconds(of: JobShapes) -> float:
    return estimate(of, None).seconds * of.held_chips
