"""Small Llama 4 with images, in Hugging Face's files: odd sizes, weights made from names, pictures of several tiles."""

import json
from pathlib import Path
from typing import Any

from PIL import Image
from tests.builders.peers.models import CASES as TEXTS
from tests.builders.peers.sized_images import SizedImages
from tests.builders.peers.templates import chat_with_tiles

from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.models.loading import llama4_inputs

PART, BEGIN, END, MARK, COLUMN_END, ROW_END = 100, 101, 102, 103, 104, 105
SIDE, PATCH, MERGE, MOST = 18, 3, 2, 4
TOWER: dict[str, Any] = {
    "model_type": "llama4_vision_model", "hidden_size": 36, "intermediate_size": 36 * MERGE**2, "num_hidden_layers": 3,
    "num_attention_heads": 3, "image_size": SIDE, "patch_size": PATCH, "pixel_shuffle_ratio": 1 / MERGE,
    "projector_input_dim": 31, "projector_output_dim": 31, "vision_output_dim": 31,
}  # fmt: skip
AROUND: dict[str, Any] = {
    "model_type": "llama4", "image_token_index": PART, "boi_token_index": BEGIN, "eoi_token_index": END,
    "tie_word_embeddings": False,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama-4": AROUND | {"text_config": TEXTS["llama-4"], "vision_config": TOWER | {"rope_theta": 50.0}},
    "llama-4-maverick": AROUND | {
        "text_config": TEXTS["llama-4"] | {"use_qk_norm": False, "rope_scaling": None},
        "vision_config": TOWER | {"num_attention_heads": 9},
    },
}  # fmt: skip
PREPROCESSOR = {
    "image_processor_type": "Llama4ImageProcessorFast", "size": {"height": SIDE, "width": SIDE}, "max_patches": MOST,
    "resize_to_max_canvas": False, "resample": 2, "do_resize": True, "do_rescale": True, "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098,
    "do_convert_rgb": True, "do_center_crop": None, "crop_size": None, "processor_class": "Llama4Processor",
}  # fmt: skip
PROCESSOR = {
    "processor_class": "Llama4Processor", "patch_size": PATCH, "pixel_shuffle_ratio": 1 / MERGE,
    "image_token": "<|image|>", "fake_image_token": "<|image|>",
}  # fmt: skip
FORMAT = TileFormat(SIDE, (SIDE // PATCH // MERGE) ** 2, MOST)


def tokens_of(picture: Image.Image) -> list[int]:
    """A picture's tokens: its tiles with what stands between them, then the mark and the whole picture."""
    rows, columns = FORMAT.canvas(picture.size)
    tile = [PART] * FORMAT.tokens_each
    row = [*(token for _ in range(columns) for token in [*tile, COLUMN_END])][:-1]
    cut = [*row, ROW_END] * rows if rows * columns > 1 else []
    return [BEGIN, *cut, MARK, *tile, END]


MODELS = SizedImages(
    CASES, ("llama-4",), FORMAT, {"preprocessor_config.json": PREPROCESSOR, "processor_config.json": PROCESSOR}, PART,
    (5, 99), tokens_of, single=(30, 29),
)  # fmt: skip


def write_trainable(directory: Path) -> Path:
    """The model with a tokenizer and a chat template: bytes, and Llama 4's marks of turns and images."""
    chat = chat_with_tiles(FORMAT)
    ids = {text: int(chat.tokenizer.engine.token_to_id(text)) for text in llama4_inputs.TEXTS}
    named = {
        "image_token_index": ids[llama4_inputs.PART], "boi_token_index": ids[llama4_inputs.BEGIN],
        "eoi_token_index": ids[llama4_inputs.END],
    }  # fmt: skip
    raw = CASES["llama-4"] | named
    text = raw["text_config"] | {"vocab_size": chat.tokenizer.size, "eos_token_id": list(chat.tokenizer.eos_ids)}
    MODELS.write_checkpoint(directory, raw | {"text_config": text})
    settings = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot|>", "chat_template": chat.source}
    (directory / "tokenizer.json").write_text(chat.tokenizer.engine.to_str())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
