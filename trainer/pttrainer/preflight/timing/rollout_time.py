"""Minimal time of a step's completions: the transfer of weights, the prompts, and every token in sequence.

Every token reads the weights once and the whole cache, whatever is in it. Every completion is assumed to have maximal
length; rows that end early, rewards and environments are not included.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pttrainer.preflight.shapes import device_bytes, rollout_shapes
from pttrainer.preflight.shapes.job_shapes import JobShapes
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, WEIGHTS
from pttrainer.preflight.shapes.rollout_shapes import Plan
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.roofline import Roofline, roofline
from pttrainer.preflight.timing.weight_sync_time import network_seconds
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.sizes import sampling_time


@dataclass(frozen=True)
class Generation:
    """Sampling time of one optimizer step.

    rows: completions that are sampled at once; tokens_per_second: sampled, of all chips. share: rollouts per
    optimizer step, of which `seconds` is that part. transfer_seconds: of the weights, `network_seconds` of them to
    chips of their own. programs: one run of each; of decoding, one token of all rows with the cache half full.
    """

    rows: int
    tokens_per_second: float
    transfer_seconds: float
    prefill_seconds: float
    decode_seconds: float
    share: float
    seconds: float
    programs: dict[str, Roofline]
    network_seconds: float = 0.0


Sent = Mapping[str, Sequence[Traffic]]
"""Traffic of compiled programs, by name."""


def generation(of: JobShapes, sent: Sent) -> Generation | None:
    """Return the sampling time; None if nothing is sampled."""
    if not rollout_shapes.samples_rollouts(of):
        return None
    there = rollout_shapes.sampler(of)
    plan = rollout_shapes.plan_of(there)
    weights = sampling_time.weights_bytes(of.structure, there.shape)
    transfer = roofline(of.sampling_slice, 0.0, _trained(of) + weights, sent.get(WEIGHTS))
    prefill = _prefill(there, plan, weights, sent.get(PREFILL))
    slots = list(_slots(plan))
    decode = _token(there, plan, sum(slots) / len(slots), weights, sent.get(DECODE))
    parts = -(-plan.prompts // plan.pool)
    turns = plan.tokens // plan.new_tokens
    network = network_seconds(of)
    seconds = transfer.seconds + network + parts * prefill.seconds + turns * len(slots) * decode.seconds
    return Generation(
        rows=plan.rows * of.sampler_count,
        tokens_per_second=plan.rows * of.sampler_count / decode.seconds,
        transfer_seconds=transfer.seconds + network,
        prefill_seconds=parts * prefill.seconds,
        decode_seconds=turns * len(slots) * decode.seconds,
        share=share_of_steps(of),
        seconds=share_of_steps(of) * seconds,
        programs={WEIGHTS: transfer, PREFILL: prefill, DECODE: decode},
        network_seconds=network,
    )


def share_of_steps(of: JobShapes) -> float:
    """Return the rollouts per optimizer step."""
    algorithm = of.spec.algorithm
    rewarded = algorithm.grpo or algorithm.ppo or algorithm.raft or algorithm.sdpo
    if rewarded is not None:
        return 1.0 / rewarded.updates_per_batch
    assert algorithm.distill is not None
    return algorithm.distill.student_share


def _trained(of: JobShapes) -> int:
    return device_bytes.total([*of.arguments.params, *of.arguments.frozen])


def _slots(plan: Plan) -> Iterator[int]:
    """Yield the cache's slots at each token of a completion; refilled rows keep it at its largest."""
    slots = plan.slots if plan.is_refilled else min(buckets.FIRST_SLOTS, plan.slots)
    for token in range(plan.new_tokens):
        while token >= slots:
            slots = min(2 * slots, plan.slots)
        yield slots


def _prefill(of: JobShapes, plan: Plan, weights: int, traffic: Sequence[Traffic] | None) -> Roofline:
    """Return the prefill of one pool. Prompts that do not divide over the chips are computed by all of them."""
    rows = of.row_shards * sampling_time.here(plan.pool, of.row_shards)
    total = sampling_time.prefill_flops(of.config, rows, plan.prompt_tokens)
    weights *= of.axis("tensor") if plan.is_gathered else 1
    hbm = plan.pieces * weights + rollout_shapes.cache_bytes(of, plan.pool, plan.prompt_slots)
    return roofline(of.sampling_slice, total, hbm, traffic)


def _token(of: JobShapes, plan: Plan, slots: float, weights: int, traffic: Sequence[Traffic] | None) -> Roofline:
    """Return the time of one token of all rows."""
    rows = of.row_shards * sampling_time.here(plan.rows, of.row_shards)
    total = rows * sampling_time.token_flops(of.config, plan.prompt_tokens + slots)
    cache = rollout_shapes.prompts_bytes(of, plan) + rollout_shapes.rows_bytes(of, plan.rows, 1) * slots
    return roofline(of.sampling_slice, total, weights + cache, traffic)
