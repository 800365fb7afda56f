"""1 if the completion's answer equals the gold answer as text, else 0.

The answer is the content of the last `<answer>…</answer>`, the text after the last `####`, or else the whole
completion. Texts are compared trimmed, with runs of white space collapsed, and case folded.
"""

from pttrainer.rewards import Row
from pttrainer.rewards.answer_extraction import marked_answer


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return 1.0 or 0.0; `row["answer"]` is the gold answer. An empty gold answer never matches."""
    expected = _text(str(row["answer"]))
    return float(expected != "" and _text(completion) == expected)


def _text(text: str) -> str:
    answer = marked_answer(text)
    return " ".join((text if answer is None else answer.text).split()).casefold()
