"""Extract the marked answer of a text, in the two ways of data sets and models: `<answer>…</answer>` and `#### …`."""

from __future__ import annotations

import re
from typing import NamedTuple

MARKER = "####"
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)


class MarkedAnswer(NamedTuple):
    """is_closed: a tag ends the answer; after `####` it extends to the end of the text."""

    text: str
    is_closed: bool


def marked_answer(text: str) -> MarkedAnswer | None:
    """Return the last marked answer, whichever way comes later, or None if there is none."""
    at = text.rfind(MARKER)
    tag = None
    for tag in _TAG.finditer(text):  # noqa: B007 - the last one
        pass
    if tag is not None and tag.start() > at:
        return MarkedAnswer(tag.group(1), True)
    return None if at < 0 else MarkedAnswer(text[at + len(MARKER) :], False)
