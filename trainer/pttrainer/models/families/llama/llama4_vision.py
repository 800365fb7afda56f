"""The vision tower of Llama 4, and what stands around both parts in `config.json`.

A job that takes images reads the tower, too, and exports the whole model.
"""

from typing import Any

from pttrainer.models.config import Llama4Vision, ModelConfig
from pttrainer.models.families.config_json import image_models
from pttrainer.models.families.config_json.fields import Fields

MODEL_TYPE = "llama4"
TOWER_TYPE = "llama4_vision_model"
UNREAD = (
    "hidden_act",
    "norm_eps",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "multi_modal_projector_bias",
)
"""Keys that change nothing in transformers: it has GELU, an epsilon of 1e-5, the last layer and no bias."""


def read(fields: Fields) -> Llama4Vision:
    """Return the vision tower of a `config.json`."""
    tower = fields.inside("vision_config")
    tower.choice("model_type", (TOWER_TYPE,), TOWER_TYPE)
    tower.choice("num_channels", (3,), 3)
    for key in ("attention_dropout", "projector_dropout"):
        tower.choice(key, (0.0,), 0.0)
    for key in UNREAD:
        tower.value(key, None)
    rope = tower.inside("rope_parameters")
    rope.choice("rope_type", ("default", "axial"), "default")
    theta = rope.number("rope_theta", tower.number("rope_theta", 10_000.0))
    rope.refuse_rest()
    ratio, width = tower.number("pixel_shuffle_ratio", 0.5), tower.integer("hidden_size", 768)
    if ratio <= 0 or 1 / round(1 / ratio) != ratio:
        tower.refuse("pixel_shuffle_ratio", "1 divided by a whole number, such as 0.5")
    merge, adapter = round(1 / ratio), tower.integer("projector_input_dim", 4096)
    d_ff = tower.integer("intermediate_size", 5632)
    if d_ff != width * merge**2:
        tower.refuse("intermediate_size", f"{width * merge**2}, the numbers of a token's {merge**2} patches")
    tower.choice("projector_output_dim", (adapter,), 4096)
    tower.choice("vision_output_dim", (adapter,), 7680)
    vision = Llama4Vision(
        d_model=width,
        d_ff=d_ff,
        layers=tower.integer("num_hidden_layers", 34),
        heads=tower.integer("num_attention_heads", 16),
        image_size=tower.integer("image_size", 448),
        patch_size=tower.integer("patch_size", 14),
        merge=merge,
        adapter=adapter,
        begin_id=fields.integer("boi_token_index", 200_080),
        end_id=fields.integer("eoi_token_index", 200_081),
        theta=theta,
    )
    tower.refuse_rest()
    return vision


def with_vision(text: dict[str, Any], config: ModelConfig, vision: Llama4Vision) -> dict[str, Any]:
    """Return the `config.json` of a whole model. text: that of its text part."""
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "text_config": text,
        "vision_config": _written(vision),
        "image_token_index": config.image_token_id,
        "boi_token_index": vision.begin_id,
        "eoi_token_index": vision.end_id,
        **{name: text[name] for name in (*image_models.TOKENS, "tie_word_embeddings") if name in text},
    }


def _written(vision: Llama4Vision) -> dict[str, Any]:
    return {
        "model_type": TOWER_TYPE,
        "hidden_size": vision.d_model,
        "intermediate_size": vision.d_ff,
        "num_hidden_layers": vision.layers,
        "num_attention_heads": vision.heads,
        "num_channels": vision.channels,
        "image_size": vision.image_size,
        "patch_size": vision.patch_size,
        "pixel_shuffle_ratio": 1 / vision.merge,
        "projector_input_dim": vision.adapter,
        "projector_output_dim": vision.adapter,
        "vision_output_dim": vision.adapter,
        "hidden_act": "gelu",
        "norm_eps": vision.norm_eps,
        "rope_theta": vision.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": vision.theta},
    }
