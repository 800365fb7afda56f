"""What a text marks as its answer, in the two ways that data and models have: `<answer>…</answer>`, and `#### …`."""

from __future__ import annotations

import re
from typing import NamedTuple

MARKER = "####"
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)


class Marked(NamedTuple):
    """is_closed: a tag says where it ends; after `####` it goes on to the end of the text."""

    text: str
    is_closed: bool


def marked(text: str) -> Marked | None:
    """The last answer that is marked, of whichever way comes later; None where none is."""
    at = text.rfind(MARKER)
    tag = None
    for tag in _TAG.finditer(text):  # noqa: B007 - the last one
        pass
    if tag is not None and tag.start() > at:
        return Marked(tag.group(1), True)
    return None if at < 0 else Marked(text[at + len(MARKER) :], False)
