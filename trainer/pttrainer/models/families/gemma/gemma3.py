"""Gemma 3: five local layers with their own rotary base per global one (arXiv 2503.19786).

Files of the multimodal models nest the text part in `text_config`. A job that takes images reads the vision tower, too,
and exports the whole model; for any other, images are left out, and the export is a text model.
"""

from dataclasses import replace
from typing import Any

from pttrainer.models.config import ModelConfig, Rope, Vision
from pttrainer.models.families.config_json import common_fields, image_models, rope_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.gemma.gemma2 import read_sizes, write_sizes

FAMILY = "gemma3_text"
ARCHITECTURE = "Gemma3ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = read_sizes(fields, vocab_size=262_208, max_positions=131_072)
    pattern = fields.integer("sliding_window_pattern", 6)
    global_rope, local_rope = _ropes(fields, common["max_positions"])
    fields.value("attn_logit_softcapping", None)  # transformers reads it and leaves it out, with every kernel
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=global_rope,
        local_rope=local_rope,
        local_layers=common_fields.local_layers(fields, common["layers"], lambda layer: (layer + 1) % pattern != 0),
        qk_norm=True,
        final_softcap=fields.nullable("final_logit_softcapping", fields.number, None),
    )


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config, in which transformers leaves a soft cap on logits out."""
    config = image_models.text_part(fields, lambda _: read, 262_144, ("mm_tokens_per_image",))
    return replace(config, final_softcap=None)


def read_vision(fields: Fields) -> Vision:
    """Return the vision tower of a multimodal config."""
    tower = fields.inside("vision_config")
    tower.choice("model_type", ("siglip_vision_model",), "siglip_vision_model")
    tower.choice("attention_dropout", (0.0,), 0.0)
    tower.choice("num_channels", (3,), 3)
    tower.value("vision_use_head", None)  # of SigLIP by itself; Gemma reads the states before it
    tower.value("projection_dim", None)
    vision = Vision(
        d_model=tower.integer("hidden_size", 768),
        d_ff=tower.integer("intermediate_size", 3072),
        layers=tower.integer("num_hidden_layers", 12),
        heads=tower.integer("num_attention_heads", 12),
        image_size=tower.integer("image_size", 224),
        patch_size=tower.integer("patch_size", 16),
        tokens=fields.integer("mm_tokens_per_image", 256),
        begin_id=fields.integer("boi_token_id", fields.integer("boi_token_index", 255_999)),
        end_id=fields.integer("eoi_token_id", fields.integer("eoi_token_index", 256_000)),
        activation=common_fields.activation(tower, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=tower.number("layer_norm_eps", 1e-6),
    )
    tower.refuse_rest()
    return vision


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    vision = config.vision
    return _write_with_images(config, vision) if isinstance(vision, Vision) else _write_text(config)


def _write_with_images(config: ModelConfig, vision: Vision) -> dict[str, Any]:
    text = _write_text(config)
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": vision.d_model,
            "intermediate_size": vision.d_ff,
            "num_hidden_layers": vision.layers,
            "num_attention_heads": vision.heads,
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "hidden_act": common_fields.WRITTEN_ACTIVATIONS[vision.activation],
            "layer_norm_eps": vision.norm_eps,
            "vision_use_head": False,
        },
        "mm_tokens_per_image": vision.tokens,
        "boi_token_index": vision.begin_id,
        "eoi_token_index": vision.end_id,
        "image_token_index": config.image_token_id,
        **{key: text[key] for key in ("tie_word_embeddings", "eos_token_id") if key in text},
    }


def _write_text(config: ModelConfig) -> dict[str, Any]:
    assert config.local_rope is not None
    return {
        **write_sizes(config, ARCHITECTURE, FAMILY),
        **_write_ropes(config.rope, config.local_rope),
        "final_logit_softcapping": config.final_softcap,
    }


def _ropes(fields: Fields, max_positions: int) -> tuple[Rope, Rope]:
    """Return the rotary embedding of global and of local layers."""
    theta, local_theta = fields.number("rope_theta", 1_000_000.0), fields.number("rope_local_base_freq", 10_000.0)
    return rope_fields.read_by_kind(fields, theta, local_theta, max_positions)


def _write_ropes(global_rope: Rope, local_rope: Rope) -> dict[str, Any]:
    """Return the rotary keys. Only the newer spelling can scale local layers."""
    if local_rope.scaling is None:
        return {**rope_fields.write(global_rope), "rope_local_base_freq": local_rope.theta}
    return rope_fields.write_by_kind(global_rope, local_rope)
