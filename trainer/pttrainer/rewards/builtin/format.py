"""1 if the completion has the required format, else 0.

Without a pattern the format is reasoning, then answer, each in its tags, each once, and nothing around them:
`<think>…</think> <answer>…</answer>` (`<reasoning>` may replace `<think>`). With a pattern, the completion must contain
a match of that regular expression; `.` matches line ends, `^` and `$` the ends of the completion.
"""

import re

from pttrainer.rewards import RewardFunction, Row
from pttrainer.sandbox.handlers import Handler, Source

_TAGS = re.compile(r"<(?:(think|reasoning)|answer)>|</(?:think|reasoning|answer)>")


def reward(prompt: str, completion: str, row: Row) -> float:
    """Return 1.0 if reasoning and answer are in their tags, else 0.0."""
    tags = [match.group(0) for match in _TAGS.finditer(completion)]
    text = completion.strip()
    for name in ("think", "reasoning"):
        expected = [f"<{name}>", f"</{name}>", "<answer>", "</answer>"]
        if tags == expected and text.startswith(expected[0]) and text.endswith(expected[3]):
            return float(_is_filled(text, *expected))
    return 0.0


def pattern_reward(pattern: str) -> RewardFunction:
    """Return the reward for a user's pattern; raise re.error if it is not a regular expression."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda prompt, completion, row: float(compiled.search(completion) is not None)


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of a pattern: a regular expression may run forever."""
    reward = pattern_reward(source["pattern"])
    return Handler(lambda sample: reward(*sample))


def _is_filled(text: str, open_first: str, close_first: str, open_second: str, close_second: str) -> bool:
    """Return True if both parts hold text and only white space separates them."""
    first, _, rest = text.removeprefix(open_first).partition(close_first)
    between, _, second = rest.removesuffix(close_second).partition(open_second)
    return bool(first.strip()) and bool(second.strip()) and not between.strip()
