"""1 when the completion's answer equals the gold answer as text, else 0.

The answer is what stands inside the last `<answer>…</answer>`, after the last `####`, or else the whole completion.
Texts are compared trimmed, with white space within as one space, and case folded.
"""

from __future__ import annotations

from pttrainer.rewards import Row
from pttrainer.rewards.answer_extraction import marked


def reward(prompt: str, completion: str, row: Row) -> float:
    """1.0 or 0.0; `row["answer"]` is the gold answer. An empty gold answer is never met."""
    wanted = _text(str(row["answer"]))
    return float(wanted != "" and _text(completion) == wanted)


def _text(text: str) -> str:
    answer = marked(text)
    return " ".join((text if answer is None else answer.text).split()).casefold()
