"""1 if the completion's final number equals the gold answer's, else 0 (GSM8K, arXiv 2110.14168).

The final answer is the text after the last `####`, or inside the last `<answer>…</answer>`, whichever comes later;
without either, the last number of the text. Numbers are compared exactly, as fractions, after removing commas,
currency, units, percent signs and trailing periods: `$1,080.00.` is `1080`, `1/2` is `0.5`.

A marked answer must be one number (`12 + 60 = 72` is 72): a list of guesses scores 0. A gold answer without a number
(`yes`) is compared as text. Time is linear in the text, so this runs inside the trainer.
"""

from __future__ import annotations

import re
from fractions import Fraction

from pttrainer.rewards import Row
from pttrainer.rewards.answer_extraction import marked_answer

LONGEST_NUMBER = 64
"""Characters; a longer run of digits is no answer to a word problem, and big-number arithmetic is slow."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = re.compile(
    rf"""(?<![A-Za-z_\d])                     # not the 2 of m2
    (?P<sign>(?<![\w).])[-−–])?               # -5, and not the operator of 10-5 or 10 - 5
    (?:[$€£¥₹]\s?)?
    (?P<inner_sign>(?<=[$€£¥₹])-)?            # $-5
    (?:(?P<whole>\d+)\s+(?=\d+/\d))?          # 2 1/2
    (?P<number>{_DIGITS}(?:\.\d+)?|\.\d+)
    (?:\s?/\s?(?P<denominator>\d+))?""",
    re.VERBOSE,
)


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return 1.0 or 0.0; `row["answer"]` is the gold answer, with or without its reasoning."""
    gold = str(row["answer"])
    wanted = final_number(gold)
    if wanted is None:
        return float(_text(gold) != "" and _text(completion) == _text(gold))
    return float(final_number(completion) == wanted)


def final_number(text: str) -> Fraction | None:
    """Return the final number of a text, or None if it has none."""
    answer = _marked(text)
    if answer is None:
        numbers = _numbers(text)
        return numbers[-1] if numbers else None
    numbers = _numbers(answer.rpartition("=")[2])
    return numbers[0] if len(numbers) == 1 else None


def _marked(text: str) -> str | None:
    """Return the text marked as the answer; after `####` it is one line."""
    answer = marked_answer(text)
    if answer is None or answer.is_closed:
        return answer and answer.text
    return answer.text.strip().partition("\n")[0]


def _numbers(text: str) -> list[Fraction]:
    values = (_value(match) for match in _NUMBER.finditer(text))
    return [value for value in values if value is not None]


def _value(match: re.Match[str]) -> Fraction | None:
    if match.end() - match.start() > LONGEST_NUMBER:
        return None
    denominator = int(match["denominator"] or 1)
    if denominator == 0:
        return None
    value = Fraction(match["number"].replace(",", "")) / denominator + int(match["whole"] or 0)
    return -value if match["sign"] or match["inner_sign"] else value


def _text(text: str) -> str:
    marked_answer = _marked(text)
    return " ".join((text if marked_answer is None else marked_answer).casefold().split()).rstrip(".")
