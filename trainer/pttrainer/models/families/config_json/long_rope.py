"""LongRoPE in `config.json`, as Phi's files have it: a factor for each pair that turns, in a short and a long list."""

import math
from typing import Any

from pttrainer.models.config import LongRopeScaling
from pttrainer.models.families.config_json.fields import LARGEST, Fields

NAMES = ("longrope", "su", "yarn")
"""Of its type: early releases have another, and transformers takes any of Phi's for this one."""


def read(fields: Fields, *, original: int, max_positions: int, pairs: int) -> LongRopeScaling:
    """Return the scaling in an object under `rope_scaling` or `rope_parameters`.

    original: the length up to which the short factors count, whatever the object has. pairs: how many of a head turn.
    """
    fields.value("original_max_position_embeddings", None)
    factor = fields.number("factor", max_positions / original)
    return LongRopeScaling(
        short=_factors(fields, "short_factor", pairs),
        long=_factors(fields, "long_factor", pairs),
        original_max_positions=original,
        attention_factor=fields.number("attention_factor", _attention_factor(factor, original)),
    )


def write(scaling: LongRopeScaling, max_positions: int) -> dict[str, Any]:
    """Return the object under `rope_scaling`; with an attention factor where it does not follow from the lengths."""
    factors = {"type": NAMES[0], "short_factor": list(scaling.short), "long_factor": list(scaling.long)}
    original = scaling.original_max_positions
    if scaling.attention_factor == _attention_factor(max_positions / original, original):
        return factors  # three keys, which is all that transformers 4 takes
    return {**factors, "attention_factor": scaling.attention_factor}


def _attention_factor(factor: float, original: int) -> float:
    """Return √(1 + ln factor / ln original): attention to more tokens is spread over them, and sharpened in turn."""
    return 1.0 if factor <= 1 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _factors(fields: Fields, key: str, pairs: int) -> tuple[float, ...]:
    listed = fields.value(key, None)
    if not isinstance(listed, list) or len(listed) != pairs or not all(_is_factor(each) for each in listed):
        fields.refuse(key, f"a list of {pairs} numbers above 0, one for each pair that turns")
    return tuple(float(each) for each in listed)


def _is_factor(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST
