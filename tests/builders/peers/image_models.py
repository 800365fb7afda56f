"""Small models with images, in Hugging Face's files: sizes are odd, weights are made from names."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tests.builders.peers import inference
from tests.builders.peers.models import WINDOW, write_with_images
from tests.builders.peers.templates import GEMMA_IMAGE_TOKENS, chat_with_images

from pttrainer.batch import Images
from pttrainer.models import Model, Params, from_hf
from pttrainer.models.weights.load_weights import load

SIDE, TOKENS = 42, 9
PART, BEGIN, END = 100, 101, 102
RAW: dict[str, Any] = {
    "model_type": "gemma3",
    "mm_tokens_per_image": TOKENS,
    "image_token_index": PART,
    "boi_token_index": BEGIN,
    "eoi_token_index": END,
    "text_config": {
        "model_type": "gemma3_text", "vocab_size": 107, "hidden_size": 42, "num_hidden_layers": 4,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 53,
        "max_position_embeddings": 256, "sliding_window": WINDOW, "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 9, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 36, "intermediate_size": 29, "num_hidden_layers": 3,
        "num_attention_heads": 4, "image_size": SIDE, "patch_size": 7, "vision_use_head": False,
    },
}  # fmt: skip
PREPROCESSOR = {
    "image_processor_type": "Gemma3ImageProcessor", "size": {"height": SIDE, "width": SIDE}, "resample": 2,
    "do_pan_and_scan": None, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "image_seq_length": TOKENS,
    "processor_class": "Gemma3Processor", "do_resize": True, "do_rescale": True, "do_normalize": True,
    "rescale_factor": 0.00392156862745098, "do_convert_rgb": None,
}  # fmt: skip


def write_checkpoint(directory: Path, raw: dict[str, Any] = RAW) -> Path:
    """`config.json`, `preprocessor_config.json` and `model.safetensors`, with the names of the released files."""
    return write_with_images(directory, raw, {"preprocessor_config.json": PREPROCESSOR}, centred_at_zero=True)


def load_model(directory: Path) -> tuple[Model, Params]:
    """The whole model, in float32 on one device."""
    model = Model(from_hf(json.loads((directory / "config.json").read_text()), images=True))
    abstract = model.abstract()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return model, load(model.config, directory, abstract, jax.tree.map(lambda _: here, abstract))


def example(seed: int, before: int, images: int, behind: int) -> np.ndarray:
    """Tokens: text, then images, each between its marks and behind one more token, then text."""
    rng = np.random.default_rng(seed)
    image = [BEGIN, *[PART] * TOKENS, END]
    ids = [*rng.integers(3, 99, before)]
    for _ in range(images):
        ids += [*image, int(rng.integers(3, 99))]
    return np.array([*ids, *rng.integers(3, 99, behind)], np.int32)


def pixels(seed: int, images: int) -> np.ndarray:
    """Normalised pixels [images, side, side, 3]."""
    return np.random.default_rng(seed).standard_normal((images, SIDE, SIDE, 3)).astype(np.float32)


def images_of(tokens_BT: np.ndarray, pixels_of_rows: list[np.ndarray]) -> Images:
    """What a batch of rows carries; each row's image tokens in order are its images'."""
    most = max(len(of_row) for of_row in pixels_of_rows)
    padded = np.zeros((len(pixels_of_rows), most, SIDE, SIDE, 3), np.float32)
    for row, of_row in enumerate(pixels_of_rows):
        padded[row, : len(of_row)] = of_row
    is_image_BT = tokens_BT == PART
    return Images(padded, np.where(is_image_BT, np.cumsum(is_image_BT, axis=1), 0).astype(np.int32))


EXAMPLES = [
    (example(0, 7, 2, 21), pixels(0, 2)),
    (example(1, 0, 1, 5), pixels(1, 1)),
    (example(2, 19, 0, 0), pixels(2, 0)),
]
"""Tokens and pixels: images that reach over a window, one at the start of a row, none."""


def packed_and_alone(model: Model, params: Params) -> tuple[list[np.ndarray], np.ndarray]:
    """Our logits of each example in a row of its own, and of all of them in one row."""
    return inference.packed_and_alone(model, params, EXAMPLES, images_of)


def write_trainable(directory: Path) -> Path:
    """The model with a tokenizer and a chat template: bytes, and Gemma's marks of turns and images."""
    chat = chat_with_images(TOKENS)
    assert chat.images is not None
    begin, part, end = (int(chat.tokenizer.engine.token_to_id(text)) for text in GEMMA_IMAGE_TOKENS)
    ids = {"image_token_index": part, "boi_token_index": begin, "eoi_token_index": end}
    text = RAW["text_config"] | {"vocab_size": chat.tokenizer.size, "eos_token_id": list(chat.tokenizer.eos_ids)}
    write_checkpoint(directory, RAW | ids | {"text_config": text})
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<eos>", "chat_template": chat.source}
    (directory / "tokenizer.json").write_text(chat.tokenizer.engine.to_str())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
