r"""1 if the completion's final number equals the gold answer's, else 0 (GSM8K, arXiv 2110.14168).

The final answer is what the text marks last: after `####`, inside `<answer>…</answer>` or in `\boxed{…}`; without any,
the last number of the text. Numbers are compared exactly, as fractions, after removing commas, currency, units, percent
signs and trailing periods: `$1,080.00.` is `1080`, `1/2` is `0.5`, `\frac{36}{2}` is `18`, `18k` is `18000`.

A marked answer must be one number (`12 + 60 = 72` is 72): a list of guesses scores 0, and so does what has to be
computed (`\sqrt{324}`; `math` does that). A gold answer without a number (`yes`) is compared as text. Time is linear in
the text, so this runs inside the trainer.
"""

import re
from fractions import Fraction

from pttrainer.rewards import Row
from pttrainer.rewards.answer_extraction import final_answer
from pttrainer.rewards.number_notation import LONGEST, NUMBER, quantities, spelled_alike

_NUMBER = re.compile(
    rf"""(?<![A-Za-z_\d])                     # not the 2 of m2
    (?P<sign>(?<![\w).])-)?                  # -5, and not the operator of 10-5 or 10 - 5
    (?:[$€£¥₹]\s?)?
    (?P<inner_sign>(?<=[$€£¥₹])-)?            # $-5
    (?P<number>{NUMBER})
    (?:\s?/\s?(?P<denominator>\d+(?:\.\d+)?))?""",
    re.VERBOSE,
)

_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|sf)?|math(?:bf|it|rm|sf)|mbox|operatorname|num|boxed)\s*\{([^{}]*)\}")
_NESTING = 4
"""Wrappers within wrappers that are taken off."""
_FRACTION = re.compile(
    r"(?P<joined>(?<=\d))?\\[dtc]?frac\s*(?:\{\s*(-?\d[\d,.]*)\s*\}|(\d))\s*(?:\{\s*(\d[\d,.]*)\s*\}|(\d))"
)
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?")
_POWER_OF_UNIT = re.compile(r"(?<=[A-Za-z])\s*\^\s*\{?[+-]?\d+\}?")
_LAYOUT = re.compile(r"\\(?:boxed|left|right|displaystyle|q?quad|[bB]igg?)(?![A-Za-z])|\\[^A-Za-z%$]|~")
_EQUALS = re.compile(r"=|≈|\\approx(?![A-Za-z])")
_DIGIT = re.compile(r"\d")
_TO_COMPUTE = re.compile(r"\\[A-Za-z]|[√π]|\d\s*[-+*×·÷^:x]\s*[$€£¥₹]?\s*\d")


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return 1.0 or 0.0; `row["answer"]` is the gold answer, with or without its reasoning."""
    gold = str(row["answer"])
    expected = final_number(gold)
    if expected is None:
        return float(_text(gold) != "" and _text(completion) == _text(gold))
    return float(final_number(completion) == expected)


def final_number(text: str) -> Fraction | None:
    """Return the final number of a text, or None if it has none."""
    answer, is_marked = final_answer(text)
    answer = _flat(answer)
    if not is_marked:
        numbers = _numbers(answer)
        return numbers[-1] if numbers else None
    sides = [side for side in _EQUALS.split(answer) if _DIGIT.search(side)]
    numbers = [] if not sides or _TO_COMPUTE.search(sides[-1]) else _numbers(sides[-1])
    return numbers[0] if len(set(numbers)) == 1 else None


def _flat(text: str) -> str:
    """Return the text without LaTeX around and in its numbers; commands that change a value stay."""
    text = spelled_alike(text)
    for _ in range(_NESTING):
        text = _WRAPPED.sub(r"\1", text)
    text = _POWER_OF_UNIT.sub("", _DEGREES.sub("", _FRACTION.sub(_with_slash, text)))
    text = _LAYOUT.sub(" ", quantities(text, is_prose=True))
    return re.sub(r"[{}\\](?![A-Za-z])|[{}]", "", text)


def _with_slash(match: re.Match[str]) -> str:
    joined, *numbers = match.groups()
    numerator, denominator = (number.replace(",", "") for number in numbers if number is not None)
    return f"{'' if joined is None else ' '}{numerator}/{denominator}"


def _numbers(text: str) -> list[Fraction]:
    values = (_value(match) for match in _NUMBER.finditer(text))
    return [value for value in values if value is not None]


def _value(match: re.Match[str]) -> Fraction | None:
    if match.end() - match.start() > LONGEST:
        return None
    denominator = Fraction(match["denominator"] or 1)
    if denominator == 0:
        return None
    value = Fraction(match["number"].replace(",", "")) / denominator
    return -value if match["sign"] or match["inner_sign"] else value


def _text(text: str) -> str:
    return " ".join(_flat(final_answer(text)[0]).casefold().split()).rstrip(".")
