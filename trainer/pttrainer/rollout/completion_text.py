"""The text of a completion: what rewards score and people read."""

from __future__ import annotations

from collections.abc import Sequence

from pttrainer.data.tokenization.tokenizer import Tokenizer


def completion_text(tokenizer: Tokenizer, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Return the text of the tokens, up to the end of the stop string that ends first.

    The last token may extend beyond it; the rest is no part of the text, though the token was sampled and is
    trained on.
    """
    text = tokenizer.decode(tokens)
    ends = [text.index(string) + len(string) for string in stop if string in text]
    return text[: min(ends)] if ends else text
