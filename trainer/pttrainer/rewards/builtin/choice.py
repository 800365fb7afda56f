"""1 if the completion's final letter is the right choice, else 0.

The choice is a single letter A to J inside the last `<answer>…</answer>`, after the last `####`, or after the last
"answer is"; failing those, a completion that is nothing but the letter. Neither a word that begins with a letter nor
two letters count as a choice.
"""

import re

from pttrainer.rewards import Row

_MARKER = re.compile(r"<answer>|####|\banswer[ \t]?(?:is\b|:)", re.IGNORECASE)
_LETTER = re.compile(r"(?<![A-Za-z'])\(?([A-Ja-j])(?![A-Za-z'])\)?")


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return 1.0 or 0.0; `row["answer"]` is the gold letter."""
    expected = _choice(str(row["answer"]))
    return float(expected is not None and _choice(completion) == expected)


def _choice(text: str) -> str | None:
    ends = [match.end() for match in _MARKER.finditer(text)]
    part = re.split(r"[\n<]", text[ends[-1] :].strip(), maxsplit=1)[0] if ends else text
    stripped = part.strip().rstrip(".").strip("()*")
    if len(stripped) == 1 and stripped.upper() in "ABCDEFGHIJ":
        return stripped.upper()
    # Lower case is a choice only alone: "a" is an article.
    letters = [letter for letter in _LETTER.findall(part) if letter.isupper()] if ends else []
    return letters[0] if len(letters) == 1 else None
