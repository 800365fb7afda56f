"""How long a step's completions take at best: the transfer of weights, the prompts, and every token after the other.

A token of a row costs what all rows cost: the weights are read once, the whole cache is read, whatever is in it. Every
completion is taken to be as long as it may be; rows that end early, rewards and environments are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pttrainer.models import matmul_flops
from pttrainer.preflight.shapes import device_bytes, rollout_shapes
from pttrainer.preflight.shapes.job_shapes import Subject
from pttrainer.preflight.shapes.passes import DECODE, PREFILL, WEIGHTS
from pttrainer.preflight.shapes.rollout_shapes import Plan
from pttrainer.preflight.timing.collectives import Traffic
from pttrainer.preflight.timing.roofline import Roofline, roofline
from pttrainer.rollout.native import buckets


@dataclass(frozen=True)
class Generation:
    """Of one optimizer step. rows: completions that are sampled at once; tokens_per_second: sampled, of all chips.

    share: rollouts per optimizer step, of which `seconds` is that part. programs: one run of each; of decoding, one
    token of all rows with the cache half full.
    """

    rows: int
    tokens_per_second: float
    transfer_seconds: float
    prefill_seconds: float
    decode_seconds: float
    share: float
    seconds: float
    programs: dict[str, Roofline]


Sent = Mapping[str, Sequence[Traffic]]
"""What compiled programs send, by name."""


def generation(of: Subject, sent: Sent) -> Generation | None:
    """None where nothing is sampled."""
    if not rollout_shapes.samples_rollouts(of):
        return None
    there = rollout_shapes.sampler(of)
    plan = rollout_shapes.plan_of(there)
    weights = rollout_shapes.weights_bytes(of.form, there.shape)
    transfer = roofline(of.sampling_slice, 0.0, _trained(of) + weights, sent.get(WEIGHTS))
    prefill = _prefill(there, plan, weights, sent.get(PREFILL))
    slots = list(_slots(plan))
    decode = _token(there, plan, sum(slots) / len(slots), weights, sent.get(DECODE))
    parts = -(-plan.prompts // plan.pool)
    turns = plan.tokens // plan.new_tokens
    seconds = transfer.seconds + parts * prefill.seconds + turns * len(slots) * decode.seconds
    return Generation(
        rows=plan.rows,
        tokens_per_second=plan.rows / decode.seconds,
        transfer_seconds=transfer.seconds,
        prefill_seconds=parts * prefill.seconds,
        decode_seconds=turns * len(slots) * decode.seconds,
        share=_share(of),
        seconds=_share(of) * seconds,
        programs={WEIGHTS: transfer, PREFILL: prefill, DECODE: decode},
    )


def _share(of: Subject) -> float:
    algorithm = of.spec.algorithm
    rewarded = algorithm.grpo or algorithm.ppo
    if rewarded is not None:
        return 1.0 / rewarded.updates_per_batch
    assert algorithm.distill is not None
    return algorithm.distill.student_share


def _trained(of: Subject) -> int:
    return device_bytes.total([*of.held.params, *of.held.frozen])


def _slots(plan: Plan) -> Iterator[int]:
    """What the cache has at each token of a completion; refilled rows keep it at its largest."""
    slots = plan.slots if plan.is_refilled else min(buckets.FIRST_SLOTS, plan.slots)
    for token in range(plan.new_tokens):
        while token >= slots:
            slots = min(2 * slots, plan.slots)
        yield slots


def _prefill(of: Subject, plan: Plan, weights: int, traffic: Sequence[Traffic] | None) -> Roofline:
    """Of one pool. Where there are fewer prompts than places for rows, some of the chips wait."""
    config, tokens = of.config, plan.pool * plan.prompt_tokens
    pairs = plan.prompt_tokens * (plan.prompt_tokens + 1) / 2
    scores = 4.0 * config.heads * config.head_dim * config.layers * plan.pool * pairs
    idle = max(1.0, of.row_shards / plan.pool)
    total = idle * (2.0 * tokens * config.layers * matmul_flops.active_weights(config) + scores)
    hbm = plan.pieces * weights + rollout_shapes.cache_bytes(of, plan.pool, plan.prompt_slots)
    return roofline(of.sampling_slice, total, hbm, traffic)


def _token(of: Subject, plan: Plan, slots: float, weights: int, traffic: Sequence[Traffic] | None) -> Roofline:
    """Of one token of all rows."""
    config, rows = of.config, plan.rows
    seen = plan.prompt_tokens + slots
    weighed = config.layers * matmul_flops.active_weights(config) + config.vocab_size * config.d_model
    scores = 4.0 * config.heads * config.head_dim * config.layers * seen
    cache = rollout_shapes.prompts_bytes(of, plan) + rollout_shapes.rows_bytes(of, rows, 1) * slots
    idle = max(1.0, of.row_shards / rows)
    return roofline(of.sampling_slice, idle * rows * (2.0 * weighed + scores), weights + cache, traffic)
