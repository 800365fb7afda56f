"""Small Mistral 3 and Ministral 3 with images, in Hugging Face's files: odd sizes, weights made from names."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.builders.peers import inference
from tests.builders.peers.models import WINDOW, YARN, write_with_images
from tests.builders.pictures import drawn

from pttrainer.batch import Images
from pttrainer.data.tokenization.image_slots import slots
from pttrainer.data.tokenization.pixels import BICUBIC, Colours, SidesFormat
from pttrainer.models import Model, Params
from pttrainer.models.config.vision import MOST_TOKENS

PART, LINE_END, END = 10, 101, 102
PATCH, MERGE, LONGEST = 3, 2, 44
TEXT: dict[str, Any] = {
    "vocab_size": 107, "hidden_size": 42, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 14, "intermediate_size": 53, "max_position_embeddings": 256, "rms_norm_eps": 1e-4,
}  # fmt: skip
TOWER: dict[str, Any] = {
    "model_type": "pixtral", "hidden_size": 36, "intermediate_size": 29, "num_hidden_layers": 3,
    "num_attention_heads": 3, "image_size": LONGEST, "patch_size": PATCH,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "mistral-3": {
        "model_type": "mistral3", "image_token_index": PART, "spatial_merge_size": MERGE, "vision_feature_layer": -1,
        "tie_word_embeddings": False, "multimodal_projector_bias": True,
        "text_config": {**TEXT, "model_type": "mistral", "sliding_window": WINDOW, "rope_theta": 1e6},
        "vision_config": {**TOWER, "hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 5e2}},
    },
    "ministral-3": {
        "model_type": "mistral3", "image_token_index": PART, "spatial_merge_size": MERGE, "vision_feature_layer": -1,
        "tie_word_embeddings": True, "projector_hidden_act": "gelu",
        "text_config": {
            **TEXT, "model_type": "ministral3", "tie_word_embeddings": True, "rope_parameters": YARN | {
                "rope_theta": 1e6, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
            },
        },
        "vision_config": {**TOWER, "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "axial"}},
    },
}  # fmt: skip
REFERENCES = ("mistral-3", "ministral-3")
"""Those whose numbers are committed."""
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
PREPROCESSOR = {
    "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": LONGEST}, "patch_size": PATCH,
    "image_mean": MEAN, "image_std": STD, "resample": 3, "do_convert_rgb": True, "processor_class": "PixtralProcessor",
}  # fmt: skip
PROCESSOR = {
    "processor_class": "PixtralProcessor", "patch_size": PATCH, "spatial_merge_size": MERGE, "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
}  # fmt: skip
FORMAT = SidesFormat(PATCH, MERGE, colours=Colours(MEAN, STD, resample=BICUBIC), longest=LONGEST)


def write_checkpoint(directory: Path, raw: dict[str, Any]) -> Path:
    """`config.json`, both files of the processor and `model.safetensors`, with the names of the released files."""
    files = {"preprocessor_config.json": PREPROCESSOR, "processor_config.json": PROCESSOR}
    return write_with_images(directory, raw, files)


def tokens_of(picture: Image.Image) -> list[int]:
    """A picture's tokens: lines of parts, each with its end, the last one with the picture's."""
    lines = [[*[PART] * count, LINE_END] for count in FORMAT.runs(picture.size)]
    return [*[token for line in lines for token in line][:-1], END]


def _examples() -> list[tuple[np.ndarray, list[Image.Image]]]:
    of_each = [(7, [(23, 9), (12, 31)], 21), (0, [(7, 6)], 5), (19, [], 0), (1, [(90, 13), (17, 17), (5, 8)], 3)]
    made = []
    for seed, (before, sizes, behind) in enumerate(of_each):
        rng, pictures = np.random.default_rng(seed), [drawn(*size, 10 * seed + n) for n, size in enumerate(sizes)]
        ids = [*rng.integers(11, 99, before)]
        for picture in pictures:
            ids += [*tokens_of(picture), int(rng.integers(11, 99))]
        made.append((np.array([*ids, *rng.integers(11, 99, behind)], np.int32), pictures))
    return made


EXAMPLES = _examples()
"""Tokens and pictures: wide and tall ones, one at the start of a row, none, three."""


def images_of(tokens_BT: np.ndarray, of_rows: list[list[Image.Image]]) -> Images:
    """What a batch of rows carries; each row's image tokens in order are its images'."""
    arrays = [[FORMAT.array(each) for each in of_row] for of_row in of_rows]
    patches = max(len(array) for of_row in arrays for array in of_row)
    padded = np.zeros((len(of_rows), max(map(len, of_rows)), patches, 2 + 3 * PATCH**2), np.float32)
    for row, of_row in enumerate(arrays):
        for image, array in enumerate(of_row):
            padded[row, image, : len(array)] = array
    runs = [[FORMAT.runs(each.size) for each in of_row] for of_row in of_rows]
    of_each = [slots(ids, PART, row, MOST_TOKENS, "a row") for ids, row in zip(tokens_BT, runs, strict=True)]
    return Images(padded, np.stack(of_each))


def packed_and_alone(model: Model, params: Params) -> tuple[list[np.ndarray], np.ndarray]:
    """Our logits of each example in a row of its own, and of all of them in one row."""
    return inference.packed_and_alone(model, params, EXAMPLES, images_of)
