"""What Llama 4's files say of the tokens of images, and of their tiles."""

from pttrainer.data.tokenization.image_tokens import ImageTokens, TileTokens
from pttrainer.data.tokenization.pixels import BILINEAR, AnyFormat, Colours
from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models.config import Llama4Vision
from pttrainer.models.families.config_json.fields import Fields

MARK, PART, BEGIN, END = "<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>"
COLUMN_END, ROW_END = "<|tile_x_separator|>", "<|tile_y_separator|>"
TEXTS = (MARK, PART, BEGIN, END, COLUMN_END, ROW_END)
OPTIONS = {
    "fake_image_token": MARK,
    "image_token": MARK,
    "start_of_image_token": BEGIN,
    "end_of_image_token": END,
    "patch_token": PART,
    "tile_x_separator_token": COLUMN_END,
    "tile_y_separator_token": ROW_END,
    "start_of_img_token": BEGIN,
    "end_of_img_token": END,
    "img_patch_token": PART,
    "tile_token": COLUMN_END,
    "tile_global_token": ROW_END,
}
"""Names of the tokens in `processor_config.json`, where it has them: those of arguments, and of attributes."""
NAMES = ("Llama4ImageProcessor", "Llama4ImageProcessorFast")
FILTERS = (BILINEAR,)
"""Those that `torch_resize` has."""
MOST_TILES = 256
"""Of a picture, without the one that shows it whole; the released models take 16."""


def check(vision: Llama4Vision, processor: Fields) -> None:
    """Refuse a `processor_config.json` with tokens, or sizes of them, other than the tower's."""
    processor.choice("patch_size", (vision.patch_size,), vision.patch_size)
    processor.choice("pixel_shuffle_ratio", (1 / vision.merge,), 1 / vision.merge)
    for name, text in OPTIONS.items():
        processor.choice(name, (text,), text)
    processor.choice("downsample_ratio", (vision.merge**2,), vision.merge**2)
    for name in ("processor_class", "chat_template", "image_processor", "image_token_id"):
        processor.value(name, None)
    processor.refuse_rest()


def tiles(fields: Fields, vision: Llama4Vision, colours: Colours) -> TileFormat:
    """Return what becomes of a picture, and of its colours, which are always scaled and normalised."""
    for name in ("do_rescale", "do_normalize"):
        if not fields.nullable(name, lambda key: fields.flag(key, True), True):
            fields.refuse(name, "True")
    fields.choice("image_processor_type", NAMES, NAMES[0])
    fields.choice("do_center_crop", (False,), False)
    fields.value("crop_size", None)
    size = fields.inside("size")
    for side in ("height", "width"):
        size.choice(side, (vision.image_size,), 336)
    size.refuse_rest()
    most = fields.integer("max_patches", 16, MOST_TILES)
    is_filled = fields.flag("resize_to_max_canvas", False)
    return TileFormat(vision.image_size, vision.tile_tokens, most, is_filled, colours.mean, colours.std, colours.scale)


def tokens(part_id: int, vision: Llama4Vision, pixels: AnyFormat, tokenizer: Tokenizer, shown: str) -> ImageTokens:
    """Return the tokens of an image; raise ConfigError, with the model as `shown`, if the tokenizer has others."""
    assert isinstance(pixels, TileFormat)
    named = {text: tokenizer.engine.token_to_id(text) for text in TEXTS}
    given = {PART: part_id, BEGIN: vision.begin_id, END: vision.end_id}
    if None in named.values() or any(named[text] != token for text, token in given.items()):
        listed = ", ".join(f"{text}: {token}" for text, token in named.items())
        wanted = ", ".join(f"{text} as {token}" for text, token in given.items())
        raise ConfigError(
            f"{shown}: the tokenizer has {listed}; accepted: the tokenizer of the model, with all of them and "
            f"{wanted}, as in config.json"
        )
    ids = frozenset(token for token in named.values() if token is not None)
    return TileTokens(MARK, BEGIN, END, PART, part_id, vision.tokens, ids, pixels, COLUMN_END, ROW_END)
