"""Mistral 3: Mistral or Ministral 3 with Pixtral's vision tower (Mistral Small 3.1 and 3.2, Ministral 3).

A job that takes images reads the tower, too, and exports the whole model; for any other, the export is a text model.
"""

from typing import Any

from pttrainer.models.config import ModelConfig, Pixtral
from pttrainer.models.families.config_json import common_fields, image_models
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.mistral import ministral3, mistral

MODEL_TYPE = "mistral3"
TEXT_READERS = {mistral.FAMILY: mistral.read, ministral3.FAMILY: ministral3.read}
ONLY_IMAGES = ("projector_hidden_act", "vision_feature_layer", "multimodal_projector_bias", "spatial_merge_size")


def read(fields: Fields) -> ModelConfig:
    """Return the text part of a `config.json`."""

    def reader(text: Fields) -> image_models.Reader:
        return TEXT_READERS[text.choice("model_type", tuple(TEXT_READERS), mistral.FAMILY)]

    return image_models.text_part(fields, reader, 10, ONLY_IMAGES)


def read_vision(fields: Fields) -> Pixtral:
    """Return the vision tower of a `config.json`."""
    tower = fields.inside("vision_config")
    tower.choice("model_type", ("pixtral",), "pixtral")
    tower.choice("attention_dropout", (0.0,), 0.0)
    tower.choice("num_channels", (3,), 3)
    fields.choice("vision_feature_layer", (-1,), -1)
    text = fields.inside("text_config")
    usual_eps = 1e-5 if text.value("model_type", mistral.FAMILY) == ministral3.FAMILY else 1e-6
    rope = tower.inside("rope_parameters")
    rope.choice("rope_type", ("axial", "default"), "axial")
    theta = rope.number("rope_theta", tower.number("rope_theta", 10_000.0))
    rope.refuse_rest()
    heads, width = tower.integer("num_attention_heads", 16), tower.integer("hidden_size", 1024)
    tower.choice("head_dim", (width // heads,), width // heads)
    tower.value("vocab_size", None)  # released files have one; no picture has
    vision = Pixtral(
        d_model=width,
        d_ff=tower.integer("intermediate_size", 4096),
        layers=tower.integer("num_hidden_layers", 24),
        heads=heads,
        image_size=tower.integer("image_size", 1024),
        patch_size=tower.integer("patch_size", 16),
        merge=fields.integer("spatial_merge_size", 2),
        projector_eps=text.number("rms_norm_eps", usual_eps),
        theta=theta,
        activation=common_fields.activation(tower, "hidden_act", "gelu"),
        projector_activation=common_fields.activation(fields, "projector_hidden_act", "gelu"),
        projector_bias=fields.flag("multimodal_projector_bias", False),
    )
    tower.refuse_rest()
    return vision


def with_vision(text: dict[str, Any], config: ModelConfig, vision: Pixtral) -> dict[str, Any]:
    """Return the `config.json` of a whole model. text: that of its text part."""
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "text_config": text,
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": vision.d_model,
            "intermediate_size": vision.d_ff,
            "num_hidden_layers": vision.layers,
            "num_attention_heads": vision.heads,
            "head_dim": vision.head_dim,
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "hidden_act": common_fields.WRITTEN_ACTIVATIONS[vision.activation],
            "rope_theta": vision.theta,
            "rope_parameters": {"rope_type": "axial", "rope_theta": vision.theta},
        },
        "image_token_index": config.image_token_id,
        "projector_hidden_act": common_fields.WRITTEN_ACTIVATIONS[vision.projector_activation],
        "vision_feature_layer": -1,
        "multimodal_projector_bias": vision.projector_bias,
        "spatial_merge_size": vision.merge,
        **{name: text[name] for name in (*image_models.TOKENS, "tie_word_embeddings")},
    }
