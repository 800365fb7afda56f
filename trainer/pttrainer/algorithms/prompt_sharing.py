"""Share a prompt among its samples in scoring and training, as sampling does.

A group of G samples then costs one prompt and G completions, not G of both; log-probs and gradients are the same up to
rounding. Left out is what only works on whole rows: fused kernels on TPUs and GPUs, experts, whose balance counts
tokens, noise and dropout, which are drawn per row, rows that are split over devices, layers with a state, and
environments, whose episodes may begin with a turn of their own.
"""

from pttrainer.models.attention import flash_kernels
from pttrainer.models.attention.dot_product import MAX_SCORES
from pttrainer.rollout.context import Context
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.runtime.distributed import sharding


def prompt_slots(context: Context, longest: int, group_size: int) -> int | None:
    """Return the slots for the prompts of every batch, or None if each row has its own prompt.

    The number is the same for the whole run, so few shapes are compiled. longest: tokens of the longest prompt.
    """
    training, config = context.spec.training, context.model.config
    if config.experts is not None or context.spec.environment is not None or training.neftune_alpha is not None:
        return None
    if config.delta is not None or (training.lora is not None and training.lora.dropout > 0):
        return None
    rows = training.micro_batch_size or training.batch_size
    shards = sharding.mesh_size(context.mesh, "batch")
    if sharding.mesh_size(context.mesh, "sequence") > 1 or rows % (group_size * shards):
        return None
    slots, own = slots_for(max(longest - 1, 1)), slots_for(context.spec.rollout.max_new_tokens)
    scores = rows * config.heads * own * (slots + own)
    if scores > MAX_SCORES * shards:
        return None
    problem = flash_kernels.model_problem(config, rows, slots + own, context.model.compute_dtype)
    return slots if flash_kernels.choose_kernel(problem) == "plain" else None
