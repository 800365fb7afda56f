"""Rotary embedding in `config.json`, in both spellings.

transformers 4 writes `rope_theta` and `rope_scaling` side by side; transformers 5 writes one `rope_parameters`, with an
object per kind for models with two kinds of layers. Both are read; the first is written, because every reader
understands it.
"""

import math
from dataclasses import replace
from typing import Any

from pttrainer.models.config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Rope,
    Scaling,
    YarnScaling,
)
from pttrainer.models.families.config_json.fields import Fields

LOCAL, GLOBAL = "sliding_attention", "full_attention"
"""Names of kinds of layers."""


def read(
    fields: Fields, theta: float, max_positions: int, share: float | None = None, unread: tuple[str, ...] = ()
) -> Rope:
    """Return the rotary embedding of all layers; `theta` is the family's default.

    share: the family's default of `partial_rotary_factor`; None for families whose heads turn whole. unread: keys that
    change nothing for text.
    """
    theta = fields.number("rope_theta", theta)
    share = share if share is None else fields.number("partial_rotary_factor", share)
    scaling, parameters = fields.inside("rope_scaling"), fields.inside("rope_parameters")
    return read_one(scaling if scaling.keys() else parameters, theta, max_positions, share, unread)


def read_by_kind(fields: Fields, theta: float, local_theta: float, max_positions: int) -> tuple[Rope, Rope]:
    """Return the rotary embedding of global and of local layers. A top-level scaling changes the global one only."""
    by_kind, scaling = fields.inside("rope_parameters"), fields.inside("rope_scaling")
    global_fields, local_fields = by_kind.inside(GLOBAL), by_kind.inside(LOCAL)
    by_kind.refuse_rest()
    return (
        _always_truncated(read_one(scaling if scaling.keys() else global_fields, theta, max_positions)),
        _always_truncated(read_one(local_fields, local_theta, max_positions)),
    )


def _always_truncated(rope: Rope) -> Rope:
    """Return the rotary embedding of one of several kinds: transformers looks for `truncate` beside the kinds."""
    if not isinstance(rope.scaling, YarnScaling):
        return rope
    return replace(rope, scaling=replace(rope.scaling, truncate=True))


def write_by_kind(global_rope: Rope, local_rope: Rope) -> dict[str, Any]:
    """Return the key `rope_parameters` for two kinds of layers."""
    return {"rope_parameters": {GLOBAL: write_one(global_rope), LOCAL: write_one(local_rope)}}


def read_one(
    fields: Fields, theta: float, max_positions: int, share: float | None = None, unread: tuple[str, ...] = ()
) -> Rope:
    """Return the rotary embedding of one object with type and numbers."""
    theta = fields.number("rope_theta", theta)
    if theta <= 0:
        fields.refuse("rope_theta", "a number above 0")
    old_name = fields.value("type", "default")
    key = "rope_type" if "rope_type" in fields else "type"
    kind = fields.value("rope_type", old_name)
    turning = fields.number("partial_rotary_factor", 1.0 if share is None else share)
    if share is not None:
        share = turning
    elif kind != "proportional":
        fields.choice("partial_rotary_factor", (1.0,), 1.0)
    scaling: Scaling | None
    if kind == "default":
        scaling = None
    elif kind == "proportional" and share is None:
        scaling = ProportionalScaling(turning, fields.number("factor", 1.0))
    elif kind == "linear":
        scaling = _linear(fields)
    elif kind == "llama3":
        scaling = _llama3(fields, max_positions)
    elif kind == "yarn":
        scaling = _yarn(fields, max_positions)
    else:
        fields.refuse(key, "default, linear, llama3, yarn" + (", proportional" if share is None else ""))
    for key in unread:
        fields.value(key, None)
    fields.refuse_rest()
    return Rope(theta, scaling, 1.0 if share is None else share)


def write(rope: Rope) -> dict[str, Any]:
    """Return the keys `rope_theta` and `rope_scaling`."""
    return {"rope_theta": rope.theta, "rope_scaling": write_scaling(rope.scaling)}


def write_one(rope: Rope) -> dict[str, Any]:
    """Return one object with type and numbers."""
    return {"rope_theta": rope.theta, **(write_scaling(rope.scaling) or {"rope_type": "default"})}


def write_scaling(scaling: Scaling | None) -> dict[str, Any] | None:
    """Return the object under `rope_scaling`."""
    match scaling:
        case None:
            return None
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
        case YarnScaling():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "attention_factor": scaling.attention_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
                "truncate": scaling.truncate,
            }
        case ProportionalScaling():
            return {
                "rope_type": "proportional",
                "partial_rotary_factor": scaling.turning,
                "factor": scaling.factor,
            }
        case LongRopeScaling():
            raise AssertionError("written with the lengths that it depends on (`long_rope`)")


def _linear(fields: Fields) -> Scaling:
    # Written by some releases; a linear scaling does not use it.
    fields.value("original_max_position_embeddings", None)
    return LinearScaling(fields.number("factor"))


def _llama3(fields: Fields, max_positions: int) -> Scaling:
    return Llama3Scaling(
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_max_positions=fields.integer("original_max_position_embeddings", max_positions),
    )


def _yarn(fields: Fields, max_positions: int) -> Scaling:
    original = fields.integer("original_max_position_embeddings", max_positions)
    factor = fields.number("factor", max_positions / original)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        attention_factor=fields.number("attention_factor", _attention_factor(fields, factor)),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.nullable("truncate", lambda key: fields.flag(key, True), True) or False,
    )


def _attention_factor(fields: Fields, factor: float) -> float:
    """Return the factor; DeepSeek's files give two slopes, whose quotient counts.

    0.1 ln(factor) + 1 by default (the paper's section 3.4).
    """

    def slope(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    above, below = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    return slope(above) / slope(below) if above and below else slope(1.0)
