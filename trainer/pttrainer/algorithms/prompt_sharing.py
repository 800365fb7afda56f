"""Share a prompt among its samples in scoring and training, as sampling does.

A group of G samples then costs one prompt and G completions, not G of both; log-probs and gradients are the same up to
rounding. Left out is what only works on whole rows: fused kernels on TPUs and GPUs, experts, whose balance counts
tokens, noise and dropout, which are drawn per row, rows that are split over devices, layers with a state, and
environments, whose episodes may begin with a turn of their own.
"""

from collections.abc import Sequence

from pttrainer.data.prompts import Question
from pttrainer.data.tokenization import row_images
from pttrainer.models.attention import flash_kernels
from pttrainer.models.config.attention import MAX_SCORES
from pttrainer.rollout.context import Context
from pttrainer.rollout.groups import ImageRows
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.runtime.distributed import sharding


def image_rows(context: Context, questions: Sequence[Question], group_size: int) -> ImageRows | None:
    """Return how every batch carries the images of prompts; None if no prompt has any."""
    if not any(question.images for question in questions):
        return None
    of_rows = row_images.of_chat(context.chat, [question.images for question in questions])
    assert of_rows is not None, "rows with images are read with their tokens"
    return ImageRows((of_rows.most, *of_rows.shape), _groups_stay_together(context, group_size))


def prompt_slots(context: Context, questions: Sequence[Question], group_size: int) -> int | None:
    """Return the slots for the prompts of every batch, or None if each row has its own prompt.

    The number is that of the run's longest prompt, so few shapes are compiled.
    """
    training, config = context.spec.training, context.model.config
    if config.experts is not None or context.spec.environment is not None or training.neftune_alpha is not None:
        return None
    if config.delta is not None or (training.lora is not None and training.lora.dropout > 0):
        return None
    if sharding.mesh_size(context.mesh, "sequence") > 1 or not _groups_stay_together(context, group_size):
        return None
    rows, shards = _rows(context), sharding.mesh_size(context.mesh, "batch")
    longest = max(len(question.tokens) for question in questions)
    slots, own = slots_for(max(longest - 1, 1)), slots_for(context.spec.rollout.max_new_tokens)
    are_text = not any(question.images for question in questions)  # no kernel knows the masks of images
    problem = flash_kernels.model_problem(config, rows, slots + own, context.model.compute_dtype)
    kernel = flash_kernels.choose_kernel(problem) if are_text else "plain"
    if flash_kernels.shares_prompts(kernel, config):
        return slots  # without an array of scores
    scores = rows * config.heads * own * (slots + own)
    return slots if kernel in ("plain", "cpu") and scores <= MAX_SCORES * shards else None


def _groups_stay_together(context: Context, group_size: int) -> bool:
    """Return True if each device has all rows of its prompts, in every micro-batch."""
    return _rows(context) % (group_size * sharding.mesh_size(context.mesh, "batch")) == 0


def _rows(context: Context) -> int:
    """Return the rows that are computed at once."""
    return context.spec.training.micro_batch_size or context.spec.training.batch_size
