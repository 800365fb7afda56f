"""1 when the completion's answer equals the gold answer as text, else 0.

The answer is what stands inside the last `<answer>…</answer>`, after the last `####`, or else the whole completion.
Texts are compared trimmed, with white space within as one space, and case folded.
"""

from __future__ import annotations

import re

from pttrainer.rewards import Row

_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_MARKER = "####"


def reward(prompt: str, completion: str, row: Row) -> float:
    """1.0 or 0.0; `row["answer"]` is the gold answer. An empty gold answer is never met."""
    wanted = _text(str(row["answer"]))
    return float(wanted != "" and _text(completion) == wanted)


def _text(text: str) -> str:
    tags = list(_TAG.finditer(text))
    at = text.rfind(_MARKER)
    if tags and tags[-1].start() > at:
        text = tags[-1].group(1)
    elif at >= 0:
        text = text[at + len(_MARKER) :]
    return " ".join(text.split()).casefold()
