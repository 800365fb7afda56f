"""What Mistral 3's files say of the tokens of images."""

from pttrainer.data.tokenization import image_tokens
from pttrainer.data.tokenization.image_tokens import ImageTokens
from pttrainer.data.tokenization.pixels import AnyFormat, PatchFormat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models.config import Pixtral
from pttrainer.models.families.config_json.fields import Fields

PART, LINE_END, END = TEXTS = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
LONGEST = 1024
NAMES = ("PixtralImageProcessor", "PixtralImageProcessorFast", "PixtralImageProcessorPil")
WITHOUT_EFFECT = ("patch_size", "do_pad", "crop_size")
"""The processor says the size of patches in the place of `patch_size`."""


def check(vision: Pixtral, processor: Fields) -> None:
    """Refuse a `processor_config.json` with tokens, or sizes of them, other than the tower's."""
    processor.choice("patch_size", (vision.patch_size,), vision.patch_size)
    processor.choice("spatial_merge_size", (vision.merge,), vision.merge)
    for name, text in zip(("image_token", "image_break_token", "image_end_token"), TEXTS, strict=True):
        processor.choice(name, (text,), text)
    for name in ("processor_class", "chat_template", "image_processor"):
        processor.value(name, None)
    processor.refuse_rest()


def tokens(part_id: int, vision: Pixtral, pixels: AnyFormat, tokenizer: Tokenizer, display_name: str) -> ImageTokens:
    """Return the tokens of an image; raise ConfigError if the tokenizer has others."""
    assert isinstance(pixels, PatchFormat)
    named = {text: tokenizer.engine.token_to_id(text) for text in TEXTS}
    ids = [token for token in named.values() if token is not None]
    if named[PART] != part_id or len(ids) < len(TEXTS):
        listed = ", ".join(f"{text}: {token}" for text, token in named.items())
        raise ConfigError(
            f"{display_name}: the tokenizer has {listed}; accepted: the tokenizer of the model, with all of them and "
            f"{PART} as {part_id}, as in config.json"
        )
    return image_tokens.pixtral(TEXTS, ids, vision.tokens, pixels)
