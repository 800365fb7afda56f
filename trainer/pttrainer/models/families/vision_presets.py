"""Small models with vision towers behind `random://<preset>`, one of each kind, to try pictures without a checkpoint.

Each is what a released model's files say, so it is read like them: `config.json`, `preprocessor_config.json`, and the
tokens of images, whose ids stand behind those of bytes. Left out: the weights, which are random.
"""

import json
from dataclasses import dataclass
from typing import Any

from pttrainer.models.families.config_json.fields import Raw

BEGIN, PART, END, VIDEO = range(264, 268)
"""Ids of tokens behind those of the byte-level tokenizer (`tokenizer.BYTE_SPECIALS`)."""
VOCABULARY = 272
PROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class VisionPreset:
    """A model's files. texts: of the tokens of images, from id 264; mark: what a chat template writes for an image."""

    config: Raw
    preprocessor: Raw
    texts: tuple[str, ...]
    mark: str

    @property
    def files(self) -> dict[str, bytes]:
        """Return what an export has beside `config.json`, because of images."""
        return {PROCESSOR: json.dumps(self.preprocessor, indent=2).encode()}


def _text(model_type: str, **more: Any) -> dict[str, Any]:
    """Return a decoder of 0.3 M weights, as wide as the preset `demo`."""
    return {
        "model_type": model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "intermediate_size": 256,
        "max_position_embeddings": 512,
        "bos_token_id": 256,
        "eos_token_id": [257],
        **more,
    }


def _tower(model_type: str, **more: Any) -> dict[str, Any]:
    """Return a tower of 0.05 M weights; its patches have 8 x 8 pixels."""
    width = {"hidden_size": 64, "intermediate_size": 128, "patch_size": 8}
    return {"model_type": model_type, **width, **more}


_SIGLIP = {"num_hidden_layers": 1, "num_attention_heads": 4}
_GEMMA3 = VisionPreset(
    {
        "model_type": "gemma3",
        "mm_tokens_per_image": 9,
        "image_token_index": PART,
        "boi_token_index": BEGIN,
        "eoi_token_index": END,
        "text_config": _text(
            "gemma3_text",
            sliding_window=512,
            sliding_window_pattern=3,
            query_pre_attn_scalar=24,
            rope_theta=100.0,
            rope_local_base_freq=100.0,
        ),
        "vision_config": _tower("siglip_vision_model", **_SIGLIP, image_size=48, vision_use_head=False),
    },
    {"size": {"height": 48, "width": 48}, "image_seq_length": 9},
    ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
    "<start_of_image>",
)
_GEMMA4 = VisionPreset(
    {
        "model_type": "gemma4",
        "image_token_id": PART,
        "boi_token_id": BEGIN,
        "eoi_token_id": END,
        "vision_soft_tokens_per_image": 70,
        "text_config": _text(
            "gemma4_text",
            sliding_window=512,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            global_head_dim=24,
            hidden_size_per_layer_input=0,
            use_bidirectional_attention="vision",
        ),
        "vision_config": _tower(
            "gemma4_vision",
            **_SIGLIP,
            num_key_value_heads=4,
            head_dim=16,
            pooling_kernel_size=2,
            position_embedding_size=140,
        ),
    },
    {"max_soft_tokens": 70, "patch_size": 8, "pooling_kernel_size": 2},
    ("<|image>", "<|image|>", "<image|>"),
    "<|image|>",
)
_QWEN3_VL = VisionPreset(
    {
        "model_type": "qwen3_vl",
        "image_token_id": PART,
        "video_token_id": VIDEO,
        "vision_start_token_id": BEGIN,
        "vision_end_token_id": END,
        "text_config": _text(
            "qwen3_vl_text",
            rope_theta=100.0,
            rope_scaling={"mrope_interleaved": True, "mrope_section": [4, 4, 4], "rope_type": "default"},
        ),
        "vision_config": _tower(
            "qwen3_vl",
            depth=1,
            num_heads=4,
            spatial_merge_size=2,
            temporal_patch_size=2,
            out_hidden_size=96,
            num_position_embeddings=36,
            deepstack_visual_indexes=[0],
        ),
    },
    {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
        "patch_size": 8,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"),
    "<|vision_start|><|image_pad|><|vision_end|>",
)
_MISTRAL3 = VisionPreset(
    {
        "model_type": "mistral3",
        "image_token_index": PART,
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "text_config": _text("mistral", sliding_window=None, rope_theta=100.0),
        "vision_config": _tower(
            "pixtral",
            **_SIGLIP,
            image_size=48,
            rope_parameters={"rope_theta": 100.0, "rope_type": "axial"},
        ),
    },
    {"size": {"longest_edge": 48}, "patch_size": 8},
    ("[IMG_BREAK]", "[IMG]", "[IMG_END]"),
    "[IMG]",
)

VISION_PRESETS: dict[str, VisionPreset] = {
    "tiny-gemma3": _GEMMA3,
    "tiny-gemma4": _GEMMA4,
    "tiny-mistral3": _MISTRAL3,
    "tiny-qwen3-vl": _QWEN3_VL,
}
"""By the name after `random://`. A picture has 9 tokens with Gemma 3, 54 to 70 with Gemma 4, 1 to 16 with Qwen3-VL, and
9 or fewer with Mistral 3."""
