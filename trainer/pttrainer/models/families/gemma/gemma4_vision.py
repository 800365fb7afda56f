"""The vision tower of Gemma 4, and what stands around both parts in `config.json`.

A job that takes images reads the tower, too, and exports text and vision; sound and videos are left out, and refused.
"""

from typing import Any

from pttrainer.models.config import Gemma4Vision, ModelConfig
from pttrainer.models.families.config_json import common_fields
from pttrainer.models.families.config_json.fields import Fields

MODEL_TYPE = "gemma4"
BOTH_WAYS = "use_bidirectional_attention"
UNREAD = ("default_output_length", "global_head_dim", "max_position_embeddings")
"""Keys of released files that change nothing: the processor says how many tokens an image has."""


def read(fields: Fields) -> Gemma4Vision:
    """Return the vision tower of a `config.json`."""
    tower = fields.inside("vision_config")
    tower.choice("model_type", ("gemma4_vision",), "gemma4_vision")
    tower.choice("attention_dropout", (0.0,), 0.0)
    tower.choice("attention_bias", (False,), False)
    rope = tower.inside("rope_parameters")
    rope.choice("rope_type", ("axial", "default"), "axial")
    for key in UNREAD:
        tower.value(key, None)
    heads = tower.integer("num_attention_heads", 12)
    vision = Gemma4Vision(
        d_model=tower.integer("hidden_size", 768),
        d_ff=tower.integer("intermediate_size", 3072),
        layers=tower.integer("num_hidden_layers", 16),
        heads=heads,
        kv_heads=tower.integer("num_key_value_heads", 12),
        head_dim=tower.integer("head_dim", 64),
        patch_size=tower.integer("patch_size", 16),
        merge=tower.integer("pooling_kernel_size", 3),
        positions=tower.integer("position_embedding_size", 10_240),
        begin_id=fields.integer("boi_token_id", 255_999),
        end_id=fields.integer("eoi_token_id", 258_882),
        usual_tokens=fields.integer("vision_soft_tokens_per_image", 280),
        theta=rope.number("rope_theta", 100.0),
        clipped=tower.flag("use_clipped_linears", False),
        standardised=tower.flag("standardize", False),
        sees_image=fields.inside("text_config").value(BOTH_WAYS, None) == "vision",
        activation=common_fields.activation(tower, "hidden_activation", "gelu_pytorch_tanh"),
        norm_eps=tower.number("rms_norm_eps", 1e-6),
    )
    rope.refuse_rest()
    tower.refuse_rest()
    return vision


def with_vision(text: dict[str, Any], config: ModelConfig, vision: Gemma4Vision) -> dict[str, Any]:
    """Return the `config.json` of a whole model. text: that of its text part."""
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "text_config": {**text, BOTH_WAYS: "vision" if vision.sees_image else None},
        "vision_config": _written(vision),
        "image_token_id": config.image_token_id,
        **dict(config.unsupported_token_ids),
        "boi_token_id": vision.begin_id,
        "eoi_token_id": vision.end_id,
        "vision_soft_tokens_per_image": vision.usual_tokens,
        **{key: text[key] for key in ("tie_word_embeddings", "eos_token_id") if key in text},
    }


def _written(vision: Gemma4Vision) -> dict[str, Any]:
    return {
        "model_type": "gemma4_vision",
        "hidden_size": vision.d_model,
        "intermediate_size": vision.d_ff,
        "num_hidden_layers": vision.layers,
        "num_attention_heads": vision.heads,
        "num_key_value_heads": vision.kv_heads,
        "head_dim": vision.head_dim,
        "patch_size": vision.patch_size,
        "pooling_kernel_size": vision.merge,
        "position_embedding_size": vision.positions,
        "rope_parameters": {"rope_type": "axial", "rope_theta": vision.theta},
        "use_clipped_linears": vision.clipped,
        "standardize": vision.standardised,
        "hidden_activation": common_fields.WRITTEN_ACTIVATIONS[vision.activation],
        "rms_norm_eps": vision.norm_eps,
    }
