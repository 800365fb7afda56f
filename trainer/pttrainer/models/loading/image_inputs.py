"""What a model with images needs of its directory: the tokens of an image, and what becomes of a picture's pixels.

Read from `preprocessor_config.json`, or from the newer `processor_config.json`, as strictly as `config.json`: what
would be computed otherwise is refused.
"""

from pathlib import Path
from typing import Any

from pttrainer.data.tokenization import image_tokens
from pttrainer.data.tokenization.image_tokens import ImageTokens
from pttrainer.data.tokenization.pixels import BILINEAR, PixelFormat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models.config import ModelConfig, Vision
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.runtime.io import json_text

FILES = OLD_FILE, NEW_FILE = "preprocessor_config.json", "processor_config.json"
_NAMES = ("Gemma3ImageProcessor", "Gemma3ImageProcessorFast", "Gemma3ImageProcessorPil")
_WITHOUT_EFFECT = (
    "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate", "processor_class",
    "default_to_square", "return_tensors", "data_format", "input_data_format", "device", "disable_grouping",
)  # fmt: skip


def tokens(config: ModelConfig, tokenizer: Tokenizer, display_name: str) -> ImageTokens:
    """Return the tokens of an image; raise ConfigError if the tokenizer lacks them."""
    assert config.vision is not None
    assert config.image_token_id is not None
    ids = config.vision.begin_id, config.image_token_id, config.vision.end_id
    begin, part, end = (tokenizer.token(token) for token in ids)
    if not (begin and part and end):
        raise ConfigError(
            f"{display_name}: the tokenizer lacks some of the ids {', '.join(map(str, ids))}, which config.json gives "
            "to images; accepted: the tokenizer of the model"
        )
    return image_tokens.gemma3(begin, part, end, ids, config.vision.tokens)


def pixel_format(vision: Vision, directory: Path, display_name: str) -> PixelFormat:
    """Return what becomes of a picture; raise ConfigError."""
    fields = _fields(directory, display_name)
    try:
        for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            fields.choice(name, (True,), True)
        fields.choice("do_pan_and_scan", (False,), False)
        fields.choice("image_processor_type", _NAMES, _NAMES[0])
        fields.choice("image_seq_length", (vision.tokens,), vision.tokens)
        size = fields.inside("size")
        for side in ("height", "width"):
            size.choice(side, (vision.image_size,), vision.image_size)
        size.refuse_rest()
        for name in _WITHOUT_EFFECT:
            fields.value(name, None)
        read = PixelFormat(
            vision.image_size,
            vision.image_size,
            _colours(fields, "image_mean"),
            _colours(fields, "image_std"),
            fields.number("rescale_factor", 1 / 255),
            fields.choice("resample", (BILINEAR,), BILINEAR),
        )
        fields.refuse_rest()
    except ConfigError as error:
        raise ConfigError(f"{display_name}: {error}") from error
    return read


def _colours(fields: Fields, key: str) -> tuple[float, float, float]:
    value = fields.value(key, [0.5, 0.5, 0.5])
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(x, int | float) and x for x in value):
        fields.refuse(key, "three numbers, for red, green and blue")
    red, green, blue = map(float, value)
    return red, green, blue


def _fields(directory: Path, display_name: str) -> Fields:
    for name in FILES:
        if not (directory / name).is_file():
            continue
        try:
            raw: Any = json_text.loads((directory / name).read_bytes())
        except ValueError as error:
            raise ConfigError(f"{display_name}/{name}: {error}; accepted: Hugging Face's format") from error
        if name == NEW_FILE:
            raw = raw.get("image_processor") if isinstance(raw, dict) else None
        if isinstance(raw, dict):
            return Fields(raw, name)
    raise ConfigError(f"{display_name}: no {OLD_FILE}; accepted: a model with images has it beside config.json")
