"""What a `config.json` of an unknown family has that no family here has, for the message that refuses it."""

import difflib
from collections.abc import Collection
from typing import Any

from pttrainer.errors import ConfigError
from pttrainer.models.families.config_json.fields import Raw

LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Kinds of layers that are attention as it is here."""

OTHER_LAYERS = {
    "index_topk": "attention to keys that an indexer chooses",
    "linear_attn_config": "linear attention",
    "mamba_d_state": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "state_size": "state-space layers",
    "ssm_state_size": "state-space layers",
    "lru_width": "recurrent layers",
    "conv_L_cache": "convolutions",
    "alibi": "ALiBi in place of rotary embeddings",
    "layer_norm_eps": "layer norms in place of RMS norms",
    "layer_norm_epsilon": "layer norms in place of RMS norms",
    "audio_config": "an audio encoder",
    "vision_config": "an image encoder",
    "is_encoder_decoder": "an encoder",
}
"""What a key, if it is set, says of the model."""


def refuse(raw: Raw, families: Collection[str]) -> ConfigError:
    """Return the error for a `model_type` that is not among these."""
    model_type = raw.get("model_type", "")
    different = differences(raw)
    why = f": has {', '.join(different)}, which no family here has" if different else ""
    close = difflib.get_close_matches(str(model_type), families, n=1)
    near = f"{close[0]} is the nearest by name; " if close else ""
    return ConfigError(
        f"config.json model_type: {model_type!r}: not supported{why}; accepted: {', '.join(sorted(families))}; "
        f"hint: {near}docs/guides/add-a-model.md says what another family takes"
    )


def differences(raw: Raw) -> list[str]:
    """Return what this config says of its layers that no family here has; of a multimodal one, its text part too."""
    parts = [raw, *(part for part in (raw.get("text_config"),) if isinstance(part, dict))]
    kinds = [kind for part in parts for kind in _listed(part.get("layer_types")) if kind not in LAYER_TYPES]
    other = [what for part in parts for key, what in OTHER_LAYERS.items() if part.get(key)]
    named = [f"layers of kind {kind}" for kind in kinds]
    return list(dict.fromkeys([*named, *other]))


def _listed(value: Any) -> list[Any]:
    return [kind for kind in value if isinstance(kind, str)] if isinstance(value, list) else []
