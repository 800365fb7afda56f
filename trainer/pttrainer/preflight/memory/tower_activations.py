"""Bytes of a pass of the vision tower, in a train step and in a rollout's prompts. Letters as in `vision_memory`."""

from pttrainer.models.config import AnyVision
from pttrainer.models.config.attention import queries_at_once
from pttrainer.preflight.memory import fitted


def of_layer(vision: AnyVision, images: int, row_tokens: int, number_bytes: int) -> int:
    """Return bytes of one layer's activations. row_tokens: of the rows that images stand in."""
    numbers = fitted.TOWER_STREAM * vision.d_model + fitted.TOWER_MLP * vision.d_ff
    return int(number_bytes * images * vision.patches(row_tokens) * numbers)


def of_scores(vision: AnyVision, images: int, row_tokens: int) -> int:
    """Return bytes of its attention's scores, of as many queries as are scored at once."""
    together = vision.patches_together(row_tokens)
    sequences = images * vision.patches(row_tokens) // together
    scores_each = sequences * vision.heads * together
    return int(fitted.TOWER_SCORES * scores_each * queries_at_once(together, scores_each))
