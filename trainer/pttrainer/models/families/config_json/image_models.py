"""Multimodal configs: their text part is a model of its own; images are left out, and an export is a text model."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json.fields import Fields

Reader = Callable[[Fields], ModelConfig]

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
ONLY_IMAGES = ("vision_config", "boi_token_index", "eoi_token_index")
"""Keys that only images need."""


def text_part(
    fields: Fields, reader_of: Callable[[Fields], Reader], image_id: int, unused: Sequence[str]
) -> ModelConfig:
    """Return the config of `text_config`, by the reader for it.

    image_id: the family's default of the id that stands for images; unused: more keys that only images need.
    """
    text = fields.inside("text_config")
    text.prefer((*TOKENS, "tie_word_embeddings"), fields)
    config = reader_of(text)(text)
    text.refuse_rest()
    for key in (*ONLY_IMAGES, *unused):
        fields.value(key, None)
    old_name = fields.integer("image_token_index", image_id)
    return replace(config, image_token_id=fields.integer("image_token_id", old_name))
