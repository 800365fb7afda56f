"""Small Qwen3-VL and Qwen 3.5 in Hugging Face's files: odd sizes, weights made from names, images of many sizes."""

import json
from pathlib import Path
from typing import Any

from PIL import Image
from tests.builders.peers.sized_images import SizedImages
from tests.builders.peers.templates import QWEN_IMAGE_TOKENS, chat_with_sized_images

from pttrainer.data.tokenization.pixels import PatchFormat

PART, BEGIN, END, VIDEO = 100, 101, 102, 103
PATCH, MERGE, FRAMES = 3, 2, 2
TOWER: dict[str, Any] = {
    "hidden_size": 36, "intermediate_size": 29, "depth": 4, "num_heads": 3, "patch_size": PATCH,
    "spatial_merge_size": MERGE, "temporal_patch_size": FRAMES, "out_hidden_size": 42, "num_position_embeddings": 25,
}  # fmt: skip
AROUND: dict[str, Any] = {
    "image_token_id": PART,
    "video_token_id": VIDEO,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": END,
    "tie_word_embeddings": False,
}
RAW: dict[str, Any] = {
    **AROUND,
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text", "vocab_size": 107, "hidden_size": 42, "num_hidden_layers": 4,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14, "intermediate_size": 53,
        "max_position_embeddings": 256, "rope_theta": 5e6,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [3, 2, 2], "rope_type": "default"},
    },
    "vision_config": {**TOWER, "model_type": "qwen3_vl", "deepstack_visual_indexes": [0, 2]},
}  # fmt: skip
DELTA: dict[str, Any] = {
    "vocab_size": 107, "hidden_size": 42, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 28, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
    "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3, "full_attention_interval": 2,
    "max_position_embeddings": 256, "intermediate_size": 53,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [3, 2, 2], "rope_type": "default", "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
EXPERTS = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 19, "shared_expert_intermediate_size": 23,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "qwen-3-vl": RAW,
    "qwen-3-vl-moe": {
        **RAW, "model_type": "qwen3_vl_moe", "text_config": {
            **RAW["text_config"], "model_type": "qwen3_vl_moe_text", "num_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 19, "mlp_only_layers": [1],
        },
        "vision_config": {**RAW["vision_config"], "model_type": "qwen3_vl_moe"},
    },
    "qwen-3.5": {
        **AROUND, "model_type": "qwen3_5", "text_config": {**DELTA, "model_type": "qwen3_5_text"},
        "vision_config": {**TOWER, "model_type": "qwen3_5"},
    },
    "qwen-3.5-moe": {
        **AROUND, "model_type": "qwen3_5_moe", "text_config": {**DELTA, **EXPERTS, "model_type": "qwen3_5_moe_text"},
        "vision_config": {**TOWER, "model_type": "qwen3_5_moe"},
    },
}  # fmt: skip
LEAST, MOST = 36, 36 * 12
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": LEAST, "longest_edge": MOST},
    "patch_size": PATCH, "temporal_patch_size": FRAMES, "merge_size": MERGE, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
}  # fmt: skip
FORMAT = PatchFormat(PATCH, MERGE, LEAST, MOST)


def tokens_of(picture: Image.Image) -> list[int]:
    """A picture's tokens between their marks."""
    return [BEGIN, *[PART] * FORMAT.tokens(picture.size), END]


MODELS = SizedImages(
    CASES, ("qwen-3-vl", "qwen-3-vl-moe", "qwen-3.5"), FORMAT, {"preprocessor_config.json": PREPROCESSOR}, PART,
    (3, 99), tokens_of, single=(6, 6), centred_at_zero=True,
)  # fmt: skip


def write_trainable(directory: Path) -> Path:
    """The model with a tokenizer and a chat template: bytes, and Qwen's marks of turns and images."""
    chat = chat_with_sized_images(FORMAT)
    begin, part, end, video = (int(chat.tokenizer.engine.token_to_id(text)) for text in QWEN_IMAGE_TOKENS)
    ids = {"image_token_id": part, "video_token_id": video, "vision_start_token_id": begin, "vision_end_token_id": end}
    text = RAW["text_config"] | {"vocab_size": chat.tokenizer.size, "eos_token_id": list(chat.tokenizer.eos_ids)}
    MODELS.write_checkpoint(directory, RAW | ids | {"text_config": text})
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": chat.source}
    (directory / "tokenizer.json").write_text(chat.tokenizer.engine.to_str())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
