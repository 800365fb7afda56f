"""The small model of the tasks with pictures, in Hugging Face's files: `random://tiny-gemma3` with more words.

Its tokens are bytes, and words for what the tasks say again and again, so that an answer has few tokens.
"""

import json
from pathlib import Path

from drawings import COLOURS, SHAPES

WORDS = (
    *(f" {colour}" for colour in COLOURS), *(f" {shape}{end}" for shape in SHAPES for end in ("s", "")), " is ",
    '<tool_call>{"name": "lookup", "arguments": {"key": "', '"}}</tool_call>', "I guess ",
)  # fmt: skip
"""Tokens of their own."""


def write(directory: Path, seed: int) -> None:
    """config.json, weights, tokenizer and preprocessor."""
    import jax  # here: the harness itself needs none of it
    from tokenizers import AddedToken

    from pttrainer.data.tokenization.tokenizer import byte_tokenizer, image_template
    from pttrainer.models import Model, from_hf
    from pttrainer.models.families.vision_presets import VISION_PRESETS
    from pttrainer.models.weights.hf_names import in_files
    from pttrainer.models.weights.save_weights import save

    directory.mkdir(parents=True, exist_ok=True)
    small, plain = VISION_PRESETS["tiny-gemma3"], byte_tokenizer()
    engine = plain.engine
    engine.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    engine.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in small.texts])
    begin, part, end = (engine.token_to_id(text) for text in small.texts)
    raw = small.config | {
        "image_token_index": part,
        "boi_token_index": begin,
        "eoi_token_index": end,
        "text_config": small.config["text_config"] | {"vocab_size": engine.get_vocab_size()},
    }
    settings = json.loads(plain.files["tokenizer_config.json"]) | {"chat_template": image_template(small.mark)}
    (directory / "config.json").write_text(json.dumps(raw))
    for name, content in small.files.items():
        (directory / name).write_bytes(content)
    (directory / "tokenizer.json").write_text(engine.to_str())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    model = Model(from_hf(raw, images=True))
    save(in_files(model.config), jax.jit(model.init)(jax.random.key(seed)), directory)
