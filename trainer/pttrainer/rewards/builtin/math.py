r"""1 if the completion's final expression equals the gold answer's mathematically, else 0.

`\frac{1}{2}`, `0.5` and `\boxed{\tfrac12}` are equal; so are sets, intervals, matrices and equations written in
different ways. math-verify (sympy) parses and compares, which may never finish on some expressions: so this runs in a
child process with a wall-clock limit, and math-verify's own alarms are off. A completion without an expression is wrong
(0); a gold answer without one is an error (no reward).
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import (  # takes seconds: imported here, so that it does not count against a completion's limit
    parse,
    verify,
)

from pttrainer.rewards import Row
from pttrainer.sandbox.user_code import RewardCodeError

logging.getLogger("math_verify").setLevel(logging.ERROR)  # math-verify warns that its alarms are off

_MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}\s+[A-Za-z]|(?<![\\A-Za-z])[A-Za-z]{4,}")
_NAMED = re.compile(r"\\(?:begin|end|text|mathrm|operatorname)\{[^}]*\}")
_BOX = re.compile(r"\\boxed\s*\{")
_BETWEEN = re.compile(r"[$,;]")
_CLOSING = re.compile(r"\s*(?:\$+|\\\)|\\\])")
LONGEST = 4_000
"""Characters read from the end of a completion, where the answer is."""


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return 1.0 or 0.0; `row["answer"]` is the gold answer, in LaTeX or plain, or a solution that ends with it."""
    gold = _expressions(_last_answer(str(row["answer"])))
    if not gold:
        raise RewardCodeError(f"no expression in the row's answer {str(row['answer'])[:60]!r}")
    answer = _expressions(_last_answer(completion[-LONGEST:]))
    return float(bool(answer) and verify(list(gold), list(answer), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _expressions(text: str) -> tuple[Any, ...]:
    """Return the expressions of a text.

    A bare formula is parsed as LaTeX as a whole; in a sentence, only what is marked or comes last.
    """
    is_bare = not _MARKED.search(text) and not _WORDS.search(_NAMED.sub("", text))
    return tuple(parse(f"${text.strip()}$" if is_bare else text, parsing_timeout=None))


def _last_answer(text: str) -> str:
    """Return the text marked as the answer, or the whole text."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    if "<answer>" in text:
        text = text.rpartition("<answer>")[2].partition("</answer>")[0]
    return text.rpartition("####")[2] if "####" in text else _last_boxed(text)


def _last_boxed(text: str) -> str:
    """Return the text after all boxed answers but the last.

    math-verify reads several on one line as a set, but a model that boxes again has changed its mind. Boxes
    separated only by `,` or `and` are one answer.
    """
    after = end = 0
    for box in _BOX.finditer(text):
        if box.start() < end:
            continue  # a box within a box
        if _BETWEEN.sub(" ", text[end : box.start()]).split() not in ([], ["and"], ["or"]):
            after = end
        end = _closed(text, box.end())
    closing = _CLOSING.match(text, after) if after else None
    return text[after if closing is None else closing.end() :]


def _closed(text: str, at: int) -> int:
    """Return the index of the brace that closes the one opened before `at`, or the end of the text."""
    depth = 1
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at
