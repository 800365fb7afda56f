"""`random://` models with towers: pictures become tokens as of their families, and exports are models of these."""

import pytest

from ptapi.spec import DraftModel, ModelSpec, Training
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import BYTE_TEMPLATE, byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.models import from_hf, to_hf
from pttrainer.models.families.vision_presets import PART, VISION_PRESETS
from pttrainer.models.loading.model_loader import open_chat
from pttrainer.models.loading.model_spec import draft_of, open_source, structure_of

EACH = pytest.mark.parametrize("name", VISION_PRESETS)
TOKENS = {  # of a square, a wide and a tall picture
    "tiny-gemma3": (9, 9, 9),
    "tiny-gemma4": (64, 60, 57),
    "tiny-mistral3": (9, 6, 3),
    "tiny-qwen3-vl": (9, 12, 6),
}
SIZES = (48, 48), (300, 200), (17, 90)


def chat_of(name: str, *, images: bool = True, **more: str) -> Chat:
    return open_chat(ModelSpec(uri=f"random://{name}", images=images, **more), print)


@EACH
def test_a_picture_has_as_many_tokens_as_its_size_makes(name: str) -> None:
    chat, counts = chat_of(name), []
    for size in SIZES:
        parts = [{"type": "image", "size": size}, {"type": "text", "text": "Which?"}]
        ids = chat.prompt_ids([{"role": "user", "content": parts}])
        counts.append(ids.count(PART))
        text = chat.tokenizer.decode(ids, skip_special=False)
        assert text.startswith("<|bos|><|user|>")
        assert text.endswith("Which?<|end|><|assistant|>")
    assert tuple(counts) == TOKENS[name]


@EACH
def test_text_is_written_as_by_other_random_models(name: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    plain = Chat(byte_tokenizer(), BYTE_TEMPLATE)
    assert chat_of(name).prompt_ids(messages) == chat_of(name, images=False).prompt_ids(messages)
    assert chat_of(name).prompt_ids(messages) == plain.prompt_ids(messages)


@EACH
def test_an_export_has_the_tower_and_its_preprocessor(name: str) -> None:
    config = open_source(f"random://{name}", "spec.model.uri", print, images=True).config
    assert from_hf(to_hf(config), images=True) == config
    assert chat_of(name).tokenizer.files.keys() >= {"preprocessor_config.json", "tokenizer.json"}


@EACH
def test_a_draft_sees_if_the_model_does(name: str) -> None:
    draft = DraftModel(uri=f"random://{name}", tokens=2)
    for images in (True, False):
        config = open_source(f"random://{name}", "spec.model.uri", print, images=images).config
        source, _ = draft_of(draft, structure_of(config, Training(), "cpu"), print)
        assert (source.config.vision is not None) == images


def test_another_tokenizer_without_tokens_of_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="the tokenizer lacks some of the ids 264, 265, 266"):
        chat_of("tiny-gemma3", tokenizer="random://tiny")
