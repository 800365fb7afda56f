"""What a model with images needs of its directory: the tokens of an image, and what becomes of a picture's pixels.

Read from `processor_config.json` if it describes an image processor, else from the older `preprocessor_config.json`, as
strictly as `config.json`: what would be computed otherwise is refused. A step whose flag is null is left out, as in
transformers; elsewhere null is the default.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pttrainer.data.tokenization import image_tokens
from pttrainer.data.tokenization.crops import CropFormat
from pttrainer.data.tokenization.image_tokens import ImageTokens
from pttrainer.data.tokenization.pixels import (
    BICUBIC,
    FILTERS,
    AnyFormat,
    BudgetFormat,
    Colours,
    PatchFormat,
    PixelFormat,
    SidesFormat,
)
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models.config import AnyVision, Gemma4Vision, Llama4Vision, ModelConfig, Pixtral, QwenVision, Vision
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.loading import llama4_inputs, pixtral_inputs
from pttrainer.models.loading.model_spec import ModelSource
from pttrainer.runtime.io import json_text

FILES = OLD_FILE, NEW_FILE = "preprocessor_config.json", "processor_config.json"
_NAMES = ("Gemma3ImageProcessor", "Gemma3ImageProcessorFast", "Gemma3ImageProcessorPil")
CLIP = Colours((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), resample=BICUBIC)
"""With the mean and deviation of red, green and blue in the pictures of CLIP (arXiv 2103.00020)."""
UNCHANGED = Colours((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), resample=BICUBIC)
"""From 0 to 1, as Gemma 4's tower reads them."""
_WITHOUT_EFFECT = (
    "do_convert_rgb", "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate",
    "processor_class", "default_to_square", "return_tensors", "data_format", "input_data_format", "device",
    "disable_grouping",
)  # fmt: skip
"""Pictures are RGB before any processor: without `do_convert_rgb`, transformers takes no others."""

_GEMMA4_NAMES = ("Gemma4ImageProcessor", "Gemma4ImageProcessorFast", "Gemma4ImageProcessorPil")
_GEMMA4_TOKENS = (70, 140, 280, 560, 1120)
"""Of an image at most, as transformers accepts them."""
_QWEN_NAMES = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")


def tokens(config: ModelConfig, tokenizer: Tokenizer, pixels: AnyFormat, display_name: str) -> ImageTokens:
    """Return the tokens of an image; raise ConfigError if the tokenizer lacks them."""
    assert config.vision is not None
    assert config.image_token_id is not None
    if isinstance(config.vision, Pixtral):
        return pixtral_inputs.tokens(config.image_token_id, config.vision, pixels, tokenizer, display_name)
    if isinstance(config.vision, Llama4Vision):
        return llama4_inputs.tokens(config.image_token_id, config.vision, pixels, tokenizer, display_name)
    ids = config.vision.begin_id, config.image_token_id, config.vision.end_id
    begin, part, end = (tokenizer.token(token) for token in ids)
    if not (begin and part and end):
        raise ConfigError(
            f"{display_name}: the tokenizer lacks some of the ids {', '.join(map(str, ids))}, which config.json gives "
            "to images; accepted: the tokenizer of the model"
        )
    if isinstance(config.vision, Gemma4Vision):
        assert isinstance(pixels, PatchFormat)
        return image_tokens.gemma4((begin, part, end), ids, config.vision.tokens, pixels)
    if isinstance(pixels, PatchFormat):
        return image_tokens.qwen(part, ids, config.vision.tokens, pixels)
    crops = pixels if isinstance(pixels, CropFormat) else None
    return image_tokens.gemma3(begin, part, end, ids, config.vision.tokens, crops)


def files_of(source: ModelSource) -> Mapping[str, bytes]:
    """Return those of `FILES` that a model has."""
    if source.directory is None:
        return {} if source.with_images is None else source.with_images.files
    paths = [source.directory / name for name in FILES]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def pixel_format(
    vision: AnyVision, files: Mapping[str, bytes], display_name: str, *, pan_and_scan: bool = False
) -> AnyFormat:
    """Return what becomes of a picture, by what `files_of` returned; raise ConfigError.

    pan_and_scan: `spec.model.panAndScan`. It is no matter of files: transformers' processor of Gemma 3 leaves the flag
    and the numbers in them aside, and takes what its caller says.
    """
    if pan_and_scan and not isinstance(vision, Vision):
        raise ConfigError(
            f"spec.model.panAndScan: true: {display_name}: accepted: false, or true with Gemma 3, whose images all "
            "become one size"
        )
    fields = _fields(files, display_name)
    try:
        if not _flag(fields, "do_resize"):
            fields.refuse("do_resize", "True")
        for name in _WITHOUT_EFFECT:
            fields.value(name, None)
        if isinstance(vision, Pixtral):
            pixtral_inputs.check(vision, Fields(_content(files, NEW_FILE, display_name), NEW_FILE))
            read: AnyFormat = _sides(fields, vision)
        elif isinstance(vision, Gemma4Vision):
            read = _budget(fields, vision)
        elif isinstance(vision, Llama4Vision):
            llama4_inputs.check(vision, Fields(_content(files, NEW_FILE, display_name), NEW_FILE))
            read = llama4_inputs.tiles(fields, vision, _read_colours(fields, Colours(), llama4_inputs.FILTERS))
        elif isinstance(vision, QwenVision):
            read = _patches(fields, vision)
        else:
            tokens = Fields(_content(files, NEW_FILE, display_name), NEW_FILE)
            tokens.choice("image_seq_length", (vision.tokens,), vision.tokens)
            read = _squares(fields, vision, CropFormat if pan_and_scan else PixelFormat)
        fields.refuse_rest()
    except ConfigError as error:
        raise ConfigError(f"{display_name}: {error}") from error
    return read


def _squares(fields: Fields, vision: Vision, made: type[PixelFormat]) -> PixelFormat:
    fields.choice("do_pan_and_scan", (False,), False)
    fields.choice("image_processor_type", _NAMES, _NAMES[0])
    fields.choice("image_seq_length", (vision.tokens,), vision.tokens)
    size = fields.inside("size")
    for side in ("height", "width"):
        size.choice(side, (vision.image_size,), 224)
    size.refuse_rest()
    return made(vision.image_size, vision.image_size, _read_colours(fields, Colours()))


def _patches(fields: Fields, vision: QwenVision) -> PatchFormat:
    fields.choice("image_processor_type", _QWEN_NAMES, _QWEN_NAMES[0])
    fields.choice("patch_size", (vision.patch_size,), 14)
    fields.choice("merge_size", (vision.merge,), 2)
    fields.choice("temporal_patch_size", (vision.frames,), 2)
    size = fields.inside("size")
    least = fields.integer("min_pixels", size.integer("shortest_edge", 56 * 56))
    most = fields.integer("max_pixels", size.integer("longest_edge", 28 * 28 * 1280))
    if "min_pixels" in fields and "max_pixels" in fields:
        size.value("min_pixels", None)
        size.value("max_pixels", None)
    size.refuse_rest()
    if max(most, 2 * least) // (vision.patch_size * vision.merge) ** 2 > vision.tokens:
        fields.refuse("size", f"a longest_edge of at most {vision.tokens:,} tokens, a shortest_edge of half of that")
    return PatchFormat(vision.patch_size, vision.merge, least, most, _read_colours(fields, CLIP))


def _sides(fields: Fields, vision: Pixtral) -> SidesFormat:
    fields.choice("image_processor_type", pixtral_inputs.NAMES, pixtral_inputs.NAMES[0])
    fields.choice("do_center_crop", (False,), False)
    for name in pixtral_inputs.WITHOUT_EFFECT:
        fields.value(name, None)
    size = fields.inside("size")
    longest = size.integer("longest_edge", pixtral_inputs.LONGEST)
    size.refuse_rest()
    return SidesFormat(vision.patch_size, vision.merge, colours=_read_colours(fields, CLIP), longest=longest)


def _budget(fields: Fields, vision: Gemma4Vision) -> BudgetFormat:
    fields.choice("image_processor_type", _GEMMA4_NAMES, _GEMMA4_NAMES[0])
    fields.choice("patch_size", (vision.patch_size,), 16)
    fields.choice("pooling_kernel_size", (vision.merge,), 3)
    for name in ("image_seq_length", "size"):
        fields.value(name, None)
    tokens = fields.choice("max_soft_tokens", _GEMMA4_TOKENS, 280)
    if tokens * vision.merge > vision.positions:
        fields.refuse("max_soft_tokens", f"tokens whose patches have positions, of which there are {vision.positions}")
    colours = _read_colours(fields, UNCHANGED, is_normalised=False)
    return BudgetFormat(vision.patch_size, vision.merge, colours=colours, tokens_most=tokens)


def _read_colours(
    fields: Fields, usual: Colours, filters: Sequence[int] = FILTERS, *, is_normalised: bool = True
) -> Colours:
    """Return what becomes of colours. usual, is_normalised: where the file says nothing; filters: those accepted."""
    mean, std = _levels(fields, "image_mean", usual.mean), _levels(fields, "image_std", usual.std)
    if not all(std):
        fields.refuse("image_std", _LEVELS + ", none of them 0")
    scale = fields.number("rescale_factor", usual.scale)
    if not scale:
        fields.refuse("rescale_factor", "a number other than 0")
    resample = fields.nullable("resample", lambda key: fields.choice(key, filters, usual.resample), usual.resample)
    if resample is None:
        fields.refuse("resample", ", ".join(map(str, filters)))
    if not _flag(fields, "do_rescale"):
        scale = 1.0
    if not _flag(fields, "do_normalize", is_normalised):
        mean, std = UNCHANGED.mean, UNCHANGED.std
    return Colours(mean, std, scale, resample)


def _flag(fields: Fields, key: str, default: bool = True) -> bool:
    """Return whether a step is taken; null says that it is not."""
    return bool(fields.nullable(key, lambda name: fields.flag(name, default), default))


def _levels(fields: Fields, key: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return a number for each channel; one number is that of all."""
    value = fields.value(key, list(default))
    levels = value if isinstance(value, list) else [value] * 3
    if len(levels) != 3 or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in levels):
        fields.refuse(key, _LEVELS)
    red, green, blue = map(float, levels)
    return red, green, blue


_LEVELS = "three numbers, for red, green and blue, or one for all"


def _fields(files: Mapping[str, bytes], display_name: str) -> Fields:
    nested = _content(files, NEW_FILE, display_name).get("image_processor")
    if isinstance(nested, dict):
        return Fields(nested, NEW_FILE)
    if raw := _content(files, OLD_FILE, display_name):
        return Fields(raw, OLD_FILE)
    raise ConfigError(f"{display_name}: no {OLD_FILE}; accepted: a model with images has it beside config.json")


def _content(files: Mapping[str, bytes], name: str, display_name: str) -> dict[str, Any]:
    """Return what a file says, nothing if it is not there."""
    try:
        raw = json_text.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise ConfigError(f"{display_name}/{name}: {error}; accepted: Hugging Face's format") from error
    return raw if isinstance(raw, dict) else {}
