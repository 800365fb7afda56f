"""What files may say of a picture's pixels, beside what released models say: steps left out, other filters and colours.

`processor_reference.py` has what transformers makes of each, `processors.npz` its numbers.
"""

import json
from typing import Any, NamedTuple

import numpy as np
from tests.builders.pictures import drawn

from pttrainer.data.tokenization.pixels import AnyFormat
from pttrainer.models.config import AnyVision, Gemma4Vision, Pixtral, QwenVision, Vision
from pttrainer.models.loading import image_inputs

OLD, NEW = image_inputs.FILES
PICTURE = drawn(23, 17)
GEMMA3 = Vision(8, 8, 1, 1, image_size=12, patch_size=4, tokens=1, begin_id=1, end_id=2)
GEMMA4 = Gemma4Vision(8, 8, 1, 1, 1, 4, patch_size=2, merge=1, positions=300, begin_id=1, end_id=2)
MISTRAL = Pixtral(8, 8, 1, 1, image_size=14, patch_size=3, merge=2, projector_eps=1e-5)
QWEN = QwenVision(
    "qwen3_vl", 8, 8, 1, 1, patch_size=3, merge=2, frames=2, positions_per_side=4, begin_id=1, end_id=2,
    sections=(1, 1, 1),
)  # fmt: skip
SQUARE: dict[str, Any] = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 12, "width": 12}}
PATCHES: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 3, "merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
BUDGET: dict[str, Any] = {
    "image_processor_type": "Gemma4ImageProcessor", "patch_size": 2, "pooling_kernel_size": 1, "max_soft_tokens": 70,
}  # fmt: skip
SIDES: dict[str, Any] = {"image_processor_type": "PixtralImageProcessorFast", "size": {"longest_edge": 14}}
AREA = {"shortest_edge": 36, "longest_edge": 36 * 6}


class Settings(NamedTuple):
    """A tower and the files beside its config."""

    vision: AnyVision
    files: dict[str, dict[str, Any]]


SETTINGS: dict[str, Settings] = {
    "gemma3-nearest": Settings(GEMMA3, {OLD: SQUARE | {"resample": 0, "do_normalize": False}}),
    "gemma3-lanczos": Settings(
        GEMMA3, {OLD: SQUARE | {"resample": 1, "do_rescale": False, "image_mean": 127.5, "image_std": [64, 32.5, 127]}}
    ),
    "gemma3-raw": Settings(GEMMA3, {OLD: SQUARE | {"do_rescale": None, "do_normalize": None, "do_convert_rgb": None}}),
    "gemma3-both-files": Settings(
        GEMMA3,
        {OLD: SQUARE | {"resample": 3, "rescale_factor": 0.01}, NEW: {"image_processor": SQUARE | {"resample": 4}}},
    ),
    "gemma3-old-file": Settings(
        GEMMA3, {OLD: SQUARE | {"image_mean": [0, 0, 0.0], "image_std": [1, 1, 1]}, NEW: {"image_seq_length": 1}}
    ),
    "qwen-hamming": Settings(QWEN, {OLD: PATCHES | {"resample": 5, "size": AREA, "do_normalize": False}}),
    "qwen-unscaled": Settings(QWEN, {OLD: PATCHES | {"size": AREA, "do_rescale": None, "image_std": [99.0, 98, 97]}}),
    "qwen-pixels": Settings(
        QWEN,
        {NEW: {"image_processor": PATCHES | {
            "min_pixels": 36 * 12, "max_pixels": 36 * 20, "size": {"min_pixels": 36, "max_pixels": 72},
            "rescale_factor": 1 / 127.5}}},
    ),
    "qwen-usual": Settings(QWEN, {OLD: PATCHES | {"max_pixels": 36 * 9, "min_pixels": 36}}),
    "gemma4-normalised": Settings(
        GEMMA4, {NEW: {"image_processor": BUDGET | {"resample": 4, "do_normalize": True, "image_mean": [0.1, 0, 0.2]}}}
    ),
    "gemma4-unscaled": Settings(GEMMA4, {OLD: BUDGET | {"do_rescale": False, "resample": 2, "do_convert_rgb": False}}),
    "mistral-box": Settings(MISTRAL, {OLD: SIDES | {"resample": 4, "do_normalize": False, "patch_size": 16}}),
    "mistral-nearest": Settings(
        MISTRAL, {OLD: SIDES, NEW: {"image_processor": SIDES | {"resample": 0, "image_mean": 0, "image_std": 0.5}}}
    ),
}  # fmt: skip


def pixel_format(settings: Settings) -> AnyFormat:
    """What our reader makes of the files."""
    files = {name: json.dumps(content).encode() for name, content in settings.files.items()}
    return image_inputs.pixel_format(settings.vision, files, "a model")


def made(name: str) -> np.ndarray:
    """Our array of the picture."""
    return pixel_format(SETTINGS[name]).array(PICTURE)
