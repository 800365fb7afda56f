"""A small model with images and random weights, in Hugging Face's files: Gemma 3's decoder and vision tower.

No preset has a tower, and none of the released models is small enough for a laptop. Its tokens are bytes, and words for
what the tasks say again and again, so that an answer has few tokens.
"""

import json
from pathlib import Path
from typing import Any

from drawings import COLOURS, SHAPES, SIDE

WORDS = (
    *(f" {colour}" for colour in COLOURS), *(f" {shape}{end}" for shape in SHAPES for end in ("s", "")), " is ",
    '<tool_call>{"name": "lookup", "arguments": {"key": "', '"}}</tool_call>', "I guess ",
)  # fmt: skip
"""Tokens of their own."""
BEGIN, PART, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
TOKENS, PATCH = 9, 8
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ '" + BEGIN + "' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DECODER = {
    "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24,
    "intermediate_size": 256, "max_position_embeddings": 512, "sliding_window": 512, "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 24, "rope_theta": 100.0, "rope_local_base_freq": 100.0,
}  # fmt: skip
TOWER = {
    "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH, "vision_use_head": False,
}  # fmt: skip


def write(directory: Path, seed: int) -> None:
    """config.json, weights, tokenizer and preprocessor."""
    import jax  # here: the harness itself needs none of it
    from tokenizers import AddedToken

    from pttrainer.data.tokenization.tokenizer import byte_tokenizer
    from pttrainer.models import Model, from_hf
    from pttrainer.models.weights.hf_names import in_files
    from pttrainer.models.weights.save_weights import save

    directory.mkdir(parents=True, exist_ok=True)
    plain = byte_tokenizer()
    engine = plain.engine
    engine.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    engine.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (BEGIN, PART, END)])
    begin, part, end = (engine.token_to_id(text) for text in (BEGIN, PART, END))
    raw: dict[str, Any] = {
        "model_type": "gemma3",
        "mm_tokens_per_image": TOKENS,
        "image_token_index": part,
        "boi_token_index": begin,
        "eoi_token_index": end,
        "text_config": {
            **DECODER,
            "model_type": "gemma3_text",
            "vocab_size": engine.get_vocab_size(),
            "bos_token_id": plain.bos_id,
            "eos_token_id": list(plain.eos_ids),
        },
        "vision_config": TOWER,
    }
    settings = json.loads(plain.files["tokenizer_config.json"]) | {"chat_template": TEMPLATE}
    (directory / "config.json").write_text(json.dumps(raw))
    (directory / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": SIDE, "width": SIDE}, "image_seq_length": TOKENS})
    )
    (directory / "tokenizer.json").write_text(engine.to_str())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    model = Model(from_hf(raw, images=True))
    save(in_files(model.config), jax.jit(model.init)(jax.random.key(seed)), directory)
