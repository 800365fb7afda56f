"""Minimal time of a step, and the run's cost: a roofline of the update, and of the rollout before it.

Real steps are slower (`roofline`), so time is "at least" and tokens per second "at most". Rewards and evaluation are
not included.
"""

from dataclasses import dataclass, field

from pttrainer.models import ModelConfig
from pttrainer.models.shapes import flops, parameters
from pttrainer.models.shapes.structure import KEPT
from pttrainer.preflight.shapes import device_bytes, rollout_shapes
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, SCORING, WEIGHTS
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.rollout_time import Generation, Sent, generation, share_of_steps
from pttrainer.preflight.timing.roofline import Roofline, roofline
from pttrainer.preflight.timing.scoring_time import scoring
from pttrainer.preflight.timing.timeline import Part, Phase, timeline

RECOMPUTED = 4 / 3
"""FLOPs with full remat over those without: one more forward pass."""
QUERIES_KEYS_VALUES = ("q", "k", "v")


@dataclass(frozen=True)
class Estimate:
    """Time of one optimizer step.

    None: unknown (no compiled program, no published bandwidth, no price), or nothing is sampled. flops and the
    fields after it are the update's; `seconds` is from the beginning to the end of `timeline`: rollout, scoring and
    update in sequence, or side by side if other chips sample meanwhile. scoring_seconds: of a step's share.
    """

    flops: float
    bound: str
    seconds: float
    update_seconds: float
    compute_seconds: float
    hbm_seconds: float
    ici_seconds: float | None
    dcn_seconds: float | None
    generation: Generation | None
    tokens_per_second_per_chip: float
    steps: int | None
    chip_hours: float | None
    cost: float | None
    scoring_seconds: float = 0.0
    timeline: list[Phase] = field(default_factory=list)


def estimate(
    of: JobShapes, traffic: list[Traffic] | None, price: float | None = None, sent: Sent | None = None
) -> Estimate:
    """Return the estimate.

    traffic: of the compiled step, per device; sent: of the rollout's programs. price: of a chip-hour.
    """
    training = of.spec.training
    total = step_flops(of)
    limits = roofline(of.training_slice, _executed_flops(of, total), _hbm_bytes(of), traffic)
    sampled = generation(of, sent or {})
    sampling = 0.0 if sampled is None else sampled.seconds
    scored = scoring(of, (sent or {}).get(SCORING))
    phases = _phases(of, sampled, scored, limits)
    seconds = max(phase.end for phase in phases)
    tokens = training.batch_size * training.sequence_length
    hours = None if training.steps is None else seconds * training.steps * (of.held_chips + of.service_chips) / 3600
    return Estimate(
        flops=total,
        bound="sampling" if sampling > limits.seconds else limits.bound,
        seconds=seconds,
        update_seconds=limits.seconds,
        compute_seconds=limits.compute_seconds,
        hbm_seconds=limits.hbm_seconds,
        ici_seconds=limits.ici_seconds,
        dcn_seconds=limits.dcn_seconds,
        generation=sampled,
        tokens_per_second_per_chip=tokens / seconds / of.held_chips,
        steps=training.steps,
        chip_hours=hours,
        cost=None if hours is None or price is None or rollout_shapes.is_elsewhere(of) else hours * price,
        scoring_seconds=0.0 if scored is None else share_of_steps(of) * scored.seconds,
        timeline=phases,
    )


def _phases(of: JobShapes, sampled: Generation | None, scored: Roofline | None, update: Roofline) -> list[Phase]:
    sync, drawn = Part("sync", 0.0, ""), []
    if sampled is not None:
        weights, share = sampled.programs[WEIGHTS], sampled.share
        bound = "network" if sampled.network_seconds > weights.seconds else weights.bound
        sync = Part("sync", share * sampled.transfer_seconds, bound)
        drawn = [
            Part("prefill", share * sampled.prefill_seconds, sampled.programs[PREFILL].bound),
            Part("decode", share * sampled.decode_seconds, sampled.programs[DECODE].bound),
        ]
    trained = [] if scored is None else [Part("scoring", share_of_steps(of) * scored.seconds, scored.bound)]
    return timeline(of, sync, drawn, [*trained, Part("update", update.seconds, update.bound)])


def step_flops(of: JobShapes) -> float:
    """Return the FLOPs of a batch of full rows, each one example: the most that this shape can require."""
    tokens = of.spec.training.sequence_length
    taught = 0.0 if of.teacher is None else flops.row_flops(of.teacher.config, None, tokens) / 3  # forward alone
    return of.spec.training.batch_size * (flops.row_flops(of.config, of.structure.adapters, tokens) + taught)


def _executed_flops(of: JobShapes, total: float) -> float:
    """Return the FLOPs with those of the forward pass that the backward pass repeats: what its policy does not save."""
    remat, tokens, rows = of.structure.remat, of.spec.training.sequence_length, of.spec.training.batch_size
    if remat == "none":
        return total
    saved, groups, kept = 0.0, of.config.groups, {*KEPT[remat].device, *KEPT[remat].host}
    if "context" in kept:
        saved = rows * flops.attention(of.config, lambda window: flops.visible(tokens, window))
    if "qkv" in kept:
        saved += 2.0 * rows * tokens * sum(group.config.layers * _qkv_weights(group.config) for group in groups)
    return total * RECOMPUTED - saved


def _qkv_weights(config: ModelConfig) -> int:
    sizes = flops.attention_matrices(config)
    return sum(inputs * outputs for name, (inputs, outputs) in sizes.items() if name in QUERIES_KEYS_VALUES)


def _hbm_bytes(of: JobShapes) -> float:
    """Return bytes per device: state read and written, weights read in each of three passes of every micro-batch."""
    held = of.arguments
    state, frozen = device_bytes.total(held.state), device_bytes.total(held.frozen)
    passes = 3 * of.spec.training.batch_size // of.micro_rows
    weights = parameters.count(of.config) * 2 / of.axis("tensor") / of.axis("expert")
    return 2.0 * state + frozen + passes * weights
