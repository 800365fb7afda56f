"""1 when the completion has the asked form, else 0.

Without a pattern the form is reasoning, then answer, each in its tags, each once, and nothing around them:
`<think>…</think> <answer>…</answer>` (`<reasoning>` is as good as `<think>`). With a pattern, the completion
must contain a match of that regular expression; `.` matches line ends, `^` and `$` the ends of the completion.
"""

from __future__ import annotations

import re

from pttrainer.rewards import RewardFunction, Row
from pttrainer.sandbox.handlers import Handler, Source

_TAGS = re.compile(r"<(?:(think|reasoning)|answer)>|</(?:think|reasoning|answer)>")


def reward(prompt: str, completion: str, row: Row) -> float:
    """1.0 where reasoning and answer stand in their tags."""
    tags = [match.group(0) for match in _TAGS.finditer(completion)]
    text = completion.strip()
    for name in ("think", "reasoning"):
        wanted = [f"<{name}>", f"</{name}>", "<answer>", "</answer>"]
        if tags == wanted and text.startswith(wanted[0]) and text.endswith(wanted[3]):
            return float(_is_filled(text, *wanted))
    return 0.0


def matching(pattern: str) -> RewardFunction:
    """The reward for a pattern of the user's; raises re.error where it is no regular expression."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda prompt, completion, row: float(compiled.search(completion) is not None)


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of a pattern: a regular expression may take for ever."""
    judge = matching(source["pattern"])
    return Handler(lambda sample: judge(*sample))


def _is_filled(text: str, open_first: str, close_first: str, open_second: str, close_second: str) -> bool:
    """Both parts hold text, and only white space stands between them."""
    first, _, rest = text.removeprefix(open_first).partition(close_first)
    between, _, second = rest.removesuffix(close_second).partition(open_second)
    return bool(first.strip()) and bool(second.strip()) and not between.strip()
