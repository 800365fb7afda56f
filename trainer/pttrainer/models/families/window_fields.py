"""Layers with a sliding window: `layer_types` in newer files, a rule of the family in older ones."""

from __future__ import annotations

from collections.abc import Callable

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_reader import Fields

LOCAL, GLOBAL = "sliding_attention", "full_attention"


def read(fields: Fields, layers: int, is_local: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return one flag per layer; `is_local` is the rule if the file lists no types. Empty if no layer is local."""
    listed = fields.value("layer_types", None)
    if listed is None:
        flags = tuple(is_local(layer) for layer in range(layers))
    else:
        if not isinstance(listed, list) or not set(listed) <= {LOCAL, GLOBAL}:
            fields.refuse("layer_types", f"a list of {GLOBAL}, {LOCAL}")
        flags = tuple(kind == LOCAL for kind in listed)
    return flags if any(flags) else ()


def write(config: ModelConfig) -> list[str]:
    """Return the value of `layer_types`."""
    return [LOCAL if config.is_local(layer) else GLOBAL for layer in range(config.layers)]
