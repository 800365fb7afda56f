r"""1 if the completion's final expression equals the gold answer's mathematically, else 0.

`\frac{1}{2}`, `0.5` and `\boxed{\tfrac12}` are equal; so are sets, intervals, matrices and equations written in
different ways. math-verify (sympy) parses and compares, which may never finish on some expressions: so this runs in a
child process with a wall-clock limit, and math-verify's own alarms are off. A completion without an expression is wrong
(0); a gold answer without one is an error (no reward).
"""

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import (  # takes seconds: imported here, so that it does not count against a completion's limit
    parse,
    verify,
)

from pttrainer.rewards import Row
from pttrainer.rewards.answer_extraction import final_answer
from pttrainer.rewards.number_notation import quantities, spelled_alike
from pttrainer.sandbox.user_code import RewardCodeError

logging.getLogger("math_verify").setLevel(logging.ERROR)  # math-verify warns that its alarms are off

_MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}\s+[A-Za-z]|(?<![\\A-Za-z])[A-Za-z]{4,}")
_NAMED = re.compile(r"\\(?:begin|end|text|mathrm|operatorname)\{[^}]*\}")
LONGEST = 4_000
"""Characters read from the end of a completion, where the answer is."""


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return 1.0 or 0.0; `row["answer"]` is the gold answer, in LaTeX or plain, or a solution that ends with it."""
    gold = _expressions(str(row["answer"]))
    if not gold:
        raise RewardCodeError(f"no expression in the row's answer {str(row['answer'])[:60]!r}")
    answer = _expressions(completion[-LONGEST:])
    return float(bool(answer) and verify(list(gold), list(answer), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _expressions(text: str) -> tuple[Any, ...]:
    """Return the expressions of a text's marked answer, or of all of it.

    A bare formula is parsed as LaTeX as a whole; in a sentence, only what is in LaTeX or comes last.
    """
    text = quantities(spelled_alike(final_answer(text)[0]), is_prose=False)
    is_bare = not _MARKED.search(text) and not _WORDS.search(_NAMED.sub("", text))
    return tuple(parse(f"${text.strip()}$" if is_bare else text, parsing_timeout=None))
