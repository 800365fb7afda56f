"""Small Qwen3-VL and Qwen 3.5 in Hugging Face's files: odd sizes, weights made from names, images of many sizes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.builders.peers import inference
from tests.builders.peers.models import write_with_images
from tests.builders.peers.templates import QWEN_IMAGE_TOKENS, chat_with_sized_images
from tests.builders.pictures import drawn

from pttrainer.batch import Images
from pttrainer.data.tokenization.pixels import PatchFormat
from pttrainer.models import Model, Params
from pttrainer.models.config.vision import MOST_TOKENS

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
    "qwen-3.5": {
        **AROUND, "model_type": "qwen3_5", "text_config": {**DELTA, "model_type": "qwen3_5_text"},
        "vision_config": {**TOWER, "model_type": "qwen3_5"},
    },
    "qwen-3.5-moe": {
        **AROUND, "model_type": "qwen3_5_moe", "text_config": {**DELTA, **EXPERTS, "model_type": "qwen3_5_moe_text"},
        "vision_config": {**TOWER, "model_type": "qwen3_5_moe"},
    },
}  # fmt: skip
REFERENCES = ("qwen-3-vl", "qwen-3.5")
"""Those whose numbers are committed."""
LEAST, MOST = 36, 36 * 12
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": LEAST, "longest_edge": MOST},
    "patch_size": PATCH, "temporal_patch_size": FRAMES, "merge_size": MERGE, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
}  # fmt: skip
FORMAT = PatchFormat(PATCH, MERGE, LEAST, MOST)


def write_checkpoint(directory: Path, raw: dict[str, Any] = RAW) -> Path:
    """`config.json`, `preprocessor_config.json` and `model.safetensors`, with the names of the released files."""
    return write_with_images(directory, raw, {"preprocessor_config.json": PREPROCESSOR}, centred_at_zero=True)


def write_trainable(directory: Path) -> Path:
    """The model with a tokenizer and a chat template: bytes, and Qwen's marks of turns and images."""
    chat = chat_with_sized_images(FORMAT)
    begin, part, end, video = (int(chat.tokenizer.engine.token_to_id(text)) for text in QWEN_IMAGE_TOKENS)
    ids = {"image_token_id": part, "video_token_id": video, "vision_start_token_id": begin, "vision_end_token_id": end}
    text = RAW["text_config"] | {"vocab_size": chat.tokenizer.size, "eos_token_id": list(chat.tokenizer.eos_ids)}
    write_checkpoint(directory, RAW | ids | {"text_config": text})
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": chat.source}
    (directory / "tokenizer.json").write_text(chat.tokenizer.engine.to_str())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Colours at random."""
    return drawn(width, height, seed)


def example(seed: int, before: int, pictures: list[Image.Image], behind: int) -> np.ndarray:
    """Tokens: text, then images, each between its marks and behind one more token, then text."""
    rng = np.random.default_rng(seed)
    ids = [*rng.integers(3, 99, before)]
    for each in pictures:
        ids += [BEGIN, *[PART] * FORMAT.tokens(each.size), END, int(rng.integers(3, 99))]
    return np.array([*ids, *rng.integers(3, 99, behind)], np.int32)


def _examples() -> list[tuple[np.ndarray, list[Image.Image]]]:
    of_each = [(7, [(23, 9), (12, 31)], 21), (0, [(6, 6)], 5), (19, [], 0), (1, [(90, 13), (17, 17), (5, 8)], 3)]
    made = []
    for seed, (before, sizes, behind) in enumerate(of_each):
        pictures = [picture(10 * seed + n, *size) for n, size in enumerate(sizes)]
        made.append((example(seed, before, pictures, behind), pictures))
    return made


EXAMPLES = _examples()
"""Tokens and pictures: wide and tall ones, one of a single token at the start of a row, none, three."""


def images_of(tokens_BT: np.ndarray, of_rows: list[list[Image.Image]]) -> Images:
    """What a batch of rows carries; each row's image tokens in order are its images'."""
    arrays = [[FORMAT.array(each) for each in of_row] for of_row in of_rows]
    patches = max(len(array) for of_row in arrays for array in of_row)
    padded = np.zeros((len(of_rows), max(map(len, of_rows)), patches, 2 + 3 * PATCH**2), np.float32)
    slots_BT = np.zeros_like(tokens_BT)
    for row, of_row in enumerate(arrays):
        places = np.flatnonzero(tokens_BT[row] == PART)
        for image, array in enumerate(of_row):
            padded[row, image, : len(array)] = array
            own, places = np.split(places, [len(array) // MERGE**2])
            slots_BT[row, own] = 1 + image * MOST_TOKENS + np.arange(len(own))
    return Images(padded, slots_BT)


def packed_and_alone(model: Model, params: Params) -> tuple[list[np.ndarray], np.ndarray]:
    """Our logits of each example in a row of its own, and of all of them in one row."""
    return inference.packed_and_alone(model, params, EXAMPLES, images_of)
