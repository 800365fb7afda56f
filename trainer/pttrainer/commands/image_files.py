"""The images of `logits` and `generate`: files that a JSON file names for each row, preprocessed as the model says."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pttrainer.batch import Images
from pttrainer.data.sources.images import decoding
from pttrainer.data.sources.images.references import Origin, reference
from pttrainer.data.tokenization.image_slots import slots
from pttrainer.data.tokenization.pixels import AnyFormat, PixelFormat, Size
from pttrainer.errors import DataError
from pttrainer.models.config import AnyVision
from pttrainer.models.loading import image_inputs

if TYPE_CHECKING:
    from PIL import Image

    from pttrainer.models.loading.model_spec import ModelSource


def read_images(path: Path, rows: list[list[int]], source: "ModelSource") -> list[Images]:
    """Return each row's images as a batch of one row. Raises DataError, or ConfigError on the model's files."""
    config = source.config
    assert config.vision is not None
    assert config.image_token_id is not None
    files = _read(path, len(rows))
    pixels = image_inputs.pixel_format(config.vision, image_inputs.files_of(source), source.display_name)
    most, batches = max(1, *map(len, files)), []
    origin = Origin(f"file://{path.absolute()}")
    for number, (ids, names) in enumerate(zip(rows, files, strict=True)):
        where = f"--images: {path}: row {number}"
        images = [reference(name, f"{where}, image {place}", origin) for place, name in enumerate(names)]
        pictures = [decoding.picture(image) for image in images]
        runs = [_runs(config.vision, pixels, each.size) for each in pictures]
        slots_T = slots(np.array(ids), config.image_token_id, runs, config.vision.tokens, where)
        batches.append((slots_T, pictures))
    shape = pixels.shape(each.size for _, pictures in batches for each in pictures)
    return [Images(_padded(pictures, pixels, (most, *shape))[None], slots_T[None]) for slots_T, pictures in batches]


def _runs(vision: AnyVision, pixels: AnyFormat, size: Size) -> list[int]:
    return [vision.tokens] if isinstance(pixels, PixelFormat) else pixels.runs(size)


def _padded(pictures: list["Image.Image"], pixels: AnyFormat, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of this shape with the pictures' pixels."""
    pixels_MSSC = np.zeros(shape, np.float32)
    for place, picture in enumerate(pictures):
        own = pixels.array(picture)
        pixels_MSSC[place, : len(own)] = own
    return pixels_MSSC


def _read(path: Path, rows: int) -> list[list[str]]:
    """Return the names of each row's files."""
    try:
        files = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"--images: {path}: cannot be read: {error}") from error
    is_names = isinstance(files, list) and all(isinstance(of_row, list) for of_row in files)
    if not is_names or not all(isinstance(name, str) for of_row in files for name in of_row) or len(files) != rows:
        raise DataError(
            f"--images: {path}: accepted: a list with a list of files for each of the {rows} rows, such as "
            '[["cat.png"], []]'
        )
    return list(files)
