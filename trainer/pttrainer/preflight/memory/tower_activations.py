"""Bytes of a pass of the vision tower, in a train step and in a rollout's prompts. Letters as in `vision_memory`."""

from pttrainer.models.config import AnyVision
from pttrainer.models.config.attention import MAX_SCORES
from pttrainer.preflight.memory import fitted


def of_layer(vision: AnyVision, images: int, row_tokens: int, number_bytes: int) -> int:
    """Return bytes of one layer's activations. row_tokens: of the rows that images stand in."""
    numbers = fitted.TOWER_STREAM * vision.d_model + fitted.TOWER_MLP * vision.d_ff
    return int(number_bytes * images * vision.patches(row_tokens) * numbers)


def of_scores(vision: AnyVision, images: int, row_tokens: int) -> int:
    """Return bytes of its attention's scores."""
    pairs = vision.patches(row_tokens) * vision.patches_together(row_tokens)
    scores = min(images * vision.heads * pairs, MAX_SCORES)
    return int(fitted.TOWER_SCORES * scores)
