"""The images of `logits` and `generate`: files that a JSON file names for each row, preprocessed as the model says."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pttrainer.batch import Images
from pttrainer.data.sources.images import decoding
from pttrainer.data.sources.images.references import Origin, reference
from pttrainer.data.tokenization.image_slots import slots
from pttrainer.errors import DataError
from pttrainer.models.loading import image_inputs

if TYPE_CHECKING:
    from pttrainer.models.loading.model_spec import ModelSource


def read_images(path: Path, rows: list[list[int]], source: "ModelSource") -> list[Images]:
    """Return each row's images as a batch of one row. Raises DataError, or ConfigError on the model's files."""
    config = source.config
    assert config.vision is not None
    assert config.image_token_id is not None
    assert source.directory is not None
    files = _read(path, len(rows))
    pixels = image_inputs.pixel_format(config.vision, source.directory, source.display_name)
    each, side = config.vision.tokens, config.vision.image_size
    most = max(1, *map(len, files))
    batches = []
    for number, (ids, names) in enumerate(zip(rows, files, strict=True)):
        where = f"--images: {path}: row {number}"
        slots_T = slots(np.array(ids), config.image_token_id, each, len(names), where)
        pixels_MSSC = np.zeros((most, side, side, 3), np.float32)
        for place, name in enumerate(names):
            image = reference(name, f"{where}, image {place}", Origin(path.absolute().as_uri()))
            pixels_MSSC[place] = pixels.normalised(pixels.resized(decoding.picture(image)))
        batches.append(Images(pixels_MSSC[None], slots_T[None]))
    return batches


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
