"""What transformers' processors of pictures make of the settings in `processor_settings`. Needs the extra `parity`."""

import json
from pathlib import Path

import numpy as np
from tests.builders.peers.processor_settings import PICTURE, SETTINGS
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pttrainer.models.config import Gemma4Vision, Pixtral, QwenVision


def made(name: str, directory: Path) -> np.ndarray:
    """Their numbers of the picture in our layout: [H, W, C], or patches [N, X]. directory: for the files."""
    vision, files = SETTINGS[name]
    for file, content in files.items():
        (directory / file).write_text(json.dumps(content))
    if isinstance(vision, QwenVision):
        return _of_qwen(directory, vision)
    if isinstance(vision, Gemma4Vision):
        theirs = Gemma4ImageProcessorPil.from_pretrained(directory)([PICTURE], return_tensors="np")
        pairs = zip(theirs["image_position_ids"][0].tolist(), theirs["pixel_values"][0], strict=True)
        P = vision.patch_size
        own = sorted(((row, column), x_X) for (column, row), x_X in pairs if row >= 0)
        return np.stack([_patch(*at, x_X.reshape(P, P, 3).transpose(2, 0, 1)) for at, x_X in own])
    if isinstance(vision, Pixtral):
        side = vision.patch_size * vision.merge  # as their processor of text with pictures passes it
        theirs = PixtralImageProcessorPil.from_pretrained(directory)([PICTURE], return_tensors="np", patch_size=side)
        return _cut(theirs["pixel_values"][0], vision)
    pixels_CHW: np.ndarray = Gemma3ImageProcessorPil.from_pretrained(directory)([PICTURE])["pixel_values"][0]
    return pixels_CHW.transpose(1, 2, 0)


def _of_qwen(directory: Path, vision: QwenVision) -> np.ndarray:
    theirs = Qwen2VLImageProcessorPil.from_pretrained(directory)([PICTURE], return_tensors="np")
    (_, rows, columns), m = theirs["image_grid_thw"][0], vision.merge
    pixels_NCFX = theirs["pixel_values"].reshape(rows * columns, 3, vision.frames, -1)
    squares = [(r, c) for r in range(0, rows, m) for c in range(0, columns, m)]
    places = [(r + y, c + x) for r, c in squares for y in range(m) for x in range(m)]
    return np.stack([_patch(*at, x[:, 0]) for at, x in zip(places, pixels_NCFX, strict=True)])


def _cut(pixels_CHW: np.ndarray, vision: Pixtral) -> np.ndarray:
    """Pixels as patches, square after square."""
    P, m = vision.patch_size, vision.merge
    rows, columns = pixels_CHW.shape[1] // P, pixels_CHW.shape[2] // P
    squares = [(r, c) for r in range(0, rows, m) for c in range(0, columns, m)]
    places = [(r + y, c + x) for r, c in squares for y in range(m) for x in range(m)]
    return np.stack([_patch(r, c, pixels_CHW[:, r * P : (r + 1) * P, c * P : (c + 1) * P]) for r, c in places])


def _patch(row: int, column: int, pixels_CPP: np.ndarray) -> np.ndarray:
    return np.array([row + 1, column + 1, *pixels_CPP.ravel()], np.float32)
