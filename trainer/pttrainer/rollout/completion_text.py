"""A completion's text: what rewards judge and people read."""

from __future__ import annotations

from collections.abc import Sequence

from pttrainer.data.tokenization.tokenizer import Tokenizer


def text_of(tokenizer: Tokenizer, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """The tokens' text, up to the end of the stop string that ends first. Its last token may say more; that is no
    part of the text, though the token was sampled and is trained on."""
    text = tokenizer.decode(tokens)
    ends = [text.index(string) + len(string) for string in stop if string in text]
    return text[: min(ends)] if ends else text
